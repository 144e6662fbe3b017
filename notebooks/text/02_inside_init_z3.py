# %% [markdown]
# # 02 Inside `init_z3`
#
# **After this notebook you can** say which parameters the ZeRO-3 optimizer owns, why `init_z3` looks in vain for the others, and what DeepCompile's graphs do with a frozen parameter.
#
# **Time**: 10 minutes to read, about 1 minute to run. **Needs**: two CPU cores; a GPU is used if there is one. [01_the_crash](01_the_crash.ipynb) first.

# %% tags=["parameters"]
world_size = 2  # ranks
device = "auto"  # auto, cuda, cuda-shared or cpu
backend = "eager"  # what engine.compile() compiles with: inductor or eager
steps = 6  # training steps; DeepCompile compiles again at step 5, so take at least 6
seed = 0
dtype = "fp32"  # fp32, bf16 or fp16

# %% [markdown]
# ## Two books about the same parameters
#
# The module knows all its parameters. The optimizer keeps a book of its own: a map from `ds_id` to the piece of memory into which this rank's share of the gradient goes. Make a ZeRO-3 engine on every rank (not compiled yet) and lay the two side by side. In the table, `shard` and `gradient` count elements on this rank, and `owned` says whether the map has the `ds_id`.

# %%
import pandas as pd

from dskit import plots, ranks

group = ranks.start(world_size, device, backend=backend, seed=seed, dtype=dtype)

# %%
# %%px
from dskit.experiments.ownership import ownership
from dskit.experiments.training import RunSettings, make_engine

engine = make_engine(RunSettings(mode="zero3", seed=seed, dtype=dtype))
rows = ownership(engine)

# %%
books = group.pull("rows")
pd.DataFrame(books[0]).set_index("ds_id")

# %%
figure = plots.plot_ownership(books[0])

# %%
assert all(book == books[0] for book in books), "the ranks' books differ"
for row in books[0]:
    assert row["owned"] == row["trainable"], f"{row['name']}: owned and trainable disagree"
    padded = -(-row["elements"] // world_size)
    assert row["shard"] == padded, f"{row['name']}: the shard has {row['shard']} elements, not {padded}"
    assert row["gradient"] == (row["shard"] if row["trainable"] else 0)

# %% [markdown]
# Every parameter is sharded, frozen or not: each rank holds one part in `world_size`. Only trainable ones have a gradient partition. (A bias of 128 elements is a very short bar next to a weight of 128 × 128.)
#
# ## Where the frozen ones were dropped
#
# The map is filled from the optimizer's parameter groups, and those are made here. Read it from the installed release:

# %%
# %%px
import inspect

from deepspeed.runtime.zero.stage3 import DeepSpeedZeroOptimizer_Stage3

source = inspect.getsource(DeepSpeedZeroOptimizer_Stage3._get_trainable_parameter_groups)
in_groups = [p.ds_id for group in engine.optimizer.fp16_groups for p in group]

# %%
print(group.pull("source", rank=0))
assert "requires_grad" in group.pull("source", rank=0)
assert group.pull("in_groups", rank=0) == [row["ds_id"] for row in books[0] if row["trainable"]]

# %% [markdown]
# One condition, `requires_grad`, and a frozen parameter never enters the optimizer's books. That is right: it has no gradient, no optimizer state and no update. (The groups are called `fp16_groups` in any dtype.)
#
# ## The loop
#
# `init_z3` walks over the module's parameters, not over the optimizer's. The marked line is the look-up:

# %%
from dskit import guard

guard.lookup_source()

# %% [markdown]
# The look-up stands under a condition that asks only whether there *is* an optimizer. With one frozen parameter in the module, the loop meets an `ds_id` that the map has never heard of.
#
# **Exercise (2 minutes, easy).** The first frozen parameter in the loop decides the number in the error. Suppose the model's layers were swapped, `trainable` first and `frozen` second, with the same four parameters. What would the message be? Put the number into `answer`.

# %%
answer = None  # the number in KeyError: ...

# %%
order = ["trainable.weight", "trainable.bias", "frozen.weight", "frozen.bias"]
expected = next(ds_id for ds_id, name in enumerate(order) if name.startswith("frozen"))
if answer is None:
    print("No answer yet.")
else:
    print(f"yours: KeyError: {answer}", f"expected: KeyError: {expected}", sep="\n")
    if answer != expected:
        print("The loop goes through the parameters in the module's order and stops at the first frozen one.")

# %% [markdown]
# <details><summary>Solution</summary>
#
# `KeyError: 2`. The two trainable parameters have the ids 0 and 1 and are found; `frozen.weight`, with id 2, is not.
#
# </details>
#
# ## What a frozen parameter needs, and what it never gets
#
# So may the loop simply pass a frozen parameter by? It must not: the parameter is sharded, and before the layer can compute with it somebody has to gather it. Look at the graphs that DeepCompile makes. This needs a compiled engine, hence the guard (the fix, the subject of the next notebook) and fresh ranks: DeepCompile changes a process for good, so each engine gets ranks of its own. `ranks.start` ends the ranks before it and starts new ones.

# %%
group = ranks.start(world_size, device, guard="on", backend=backend, seed=seed, dtype=dtype, steps=steps)

# %%
# %%px
from dskit.experiments.graphs import captured_graphs
from dskit.experiments.training import RunSettings, make_engine, train

settings = RunSettings(mode="deepcompile", backend=backend, dtype=dtype, steps=steps, seed=seed)
engine = make_engine(settings)
with captured_graphs(engine) as graphs:
    losses = train(engine, settings)

# %%
graphs = group.pull("graphs", rank=0)
first = [graph for graph in graphs if graph["step"] == 0]
print("graphs:", [(graph["step"], graph["direction"]) for graph in graphs])
assert [graph["direction"] for graph in first] == ["forward", "backward"]

# %% [markdown]
# This is the forward graph as DeepCompile left it, the code that runs. Find `allgather_param`, `wait_allgather` and `release_param` for each of the four parameters. How to read it: the number after `GRAPH` is the parameter's `ds_id`; `primals` are the graph's inputs, of which two are the batch (inputs and targets) and four the parameters' shards; the last number of `release_param` says how many uses there are before the parameter may go.

# %%
from IPython.display import Markdown

Markdown(f"```python\n{first[0]['code']}\n```")

# %% [markdown]
# And the backward graph (a graph's function is always called `forward`; `tangents_1` is the gradient of the loss). Look for the parameters that are reduced:

# %%
Markdown(f"```python\n{first[1]['code']}\n```")

# %%
figure = plots.plot_graph_operations(first)


# %%
def count(graph, operation):
    """How often each parameter meets an operation in a graph."""
    names = [name for row in graph["rows"] if row["operation"] == operation for name in row["names"]]
    return pd.Series(names).value_counts()


forward, backward = first
table = (
    pd.DataFrame(
        {
            "gathered (forward)": count(forward, "gather"),
            "released (forward)": count(forward, "release"),
            "reduced (backward)": count(backward, "reduce"),
        }
    )
    .fillna(0)
    .astype(int)
)
table

# %%
trainable = {row["name"]: row["trainable"] for row in books[0]}
for name, row in table.iterrows():
    assert row["gathered (forward)"] == 1, f"{name} is gathered {row['gathered (forward)']} times"
    assert row["released (forward)"] >= 1, f"{name} is never released"
    assert row["reduced (backward)"] == int(trainable[name]), f"{name}: wrong number of reduces"
assert set(table.index) == set(trainable)
group.stop()

# %% [markdown]
# A frozen parameter is gathered and released like any other. It is never reduced: it has no gradient, so the pass that adds reduces skips it, and nothing ever reads the gradient buffer that `init_z3` registers for it. Any buffer will do for it, an empty one too. It just has to be **registered**.
#
# In this model the frozen layer comes first, so the backward pass ends before it. A frozen layer *between* trainable ones, as in LoRA, is gathered in the backward graph as well, since the gradient has to pass through it. It is still never reduced.
#
# ## Key points
#
# - The optimizer's map holds the trainable parameters; the module has all of them. `init_z3` looks up all of them in the map.
# - A frozen parameter is sharded, gathered and released in the forward graph, so it must stay registered.
# - It has no reduce in the backward graph, so its gradient buffer is never read.
#
# That leaves one condition to add: [03_the_guarded_fix](03_the_guarded_fix.ipynb).
