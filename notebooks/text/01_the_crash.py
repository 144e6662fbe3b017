# %% [markdown]
# # 01 The crash
#
# **After this notebook you can** reproduce the crash of DeepSpeed's DeepCompile on a frozen parameter, read its traceback, and say which parameter it is about.
#
# **Time**: 5 minutes to read, about 1 minute to run. **Needs**: two CPU cores; a GPU is used if there is one. No download.

# %% tags=["parameters"]
world_size = 2  # ranks; the report's script is written for two
device = "auto"  # auto, cuda, cuda-shared or cpu
backend = "inductor"  # what engine.compile() compiles with: inductor or eager
# The report's script fixes the next three by itself. They are here so that one set of
# parameters can run the whole course.
steps = 10
seed = 0
dtype = "bf16"

# %% [markdown]
# ## The words, in six lines
#
# - A **rank** is one of several processes that train together, as a rule one for each GPU; **torchrun** starts them. Their number is the **world size**.
# - **ZeRO-3** cuts every parameter into **shards**, one for each rank. Before a layer computes, its parameters are **gathered** from all ranks, and after it they are **released**; gradients are **reduced**: averaged over the ranks, each rank keeping its shard's part. ZeRO-0 shards nothing.
# - An **engine** is DeepSpeed's wrapper around a model and its optimizer.
# - **DeepCompile** is DeepSpeed's compiler: it puts the gathers, releases and reduces into the model's compiled graph, where it can move them.
# - A **frozen** parameter has `requires_grad=False` and is not trained. LoRA freezes a whole model and trains small matrices beside it.
# - The **guard** is dskit's name for the fix, because it guards one line. Here it stays off.
#
# ## The script of the report
#
# In August 2026 a pull request to DeepSpeed (number 8214) reported that LoRA runs cannot use DeepCompile under ZeRO-3. It came with this script (the comment on top is ours). Two linear layers, the first one frozen; ZeRO stage 3; and one line in the configuration that switches DeepCompile on.

# %%
from pathlib import Path

from IPython.display import Markdown

assert world_size == 2, (
    f"the report's script has a train_batch_size of 2, one sample a rank; not {world_size} ranks"
)
Markdown(f"```python\n{Path('repro.py').read_text()}```")

# %% [markdown]
# ## Run it on two ranks
#
# The next cell starts the script under torchrun, unmodified. `guard="off"` asks for DeepSpeed's behaviour without the fix, also where the installed release already has it. Without a GPU, dskit stands in for the part of DeepCompile that is written in CUDA; the compiler passes that run, and the line that fails, are DeepSpeed's own Python code.
#
# Before you run it: the script creates an engine, compiles it, and does one step. How far will it get?

# %%
from dskit import ranks

crash = ranks.run_script("repro.py", ranks=world_size, device=device, guard="off", backend=backend)
print("exit status:", crash.status)

# %% [markdown]
# ## Read the traceback
#
# Both ranks failed in the same place, so dskit shows their traceback once. Read it from the bottom: the error, then the line that raised it, then who called that line.

# %%
import re

from dskit import guard

where = guard.state()
frames = re.findall(r'File "([^"]+)", line (\d+), in (\w+)', crash.output)
innermost = [(Path(file).name, int(line)) for file, line, function in frames if function == "init_z3"]
print(f"raised at {innermost[0][0]}, line {innermost[0][1]}")
guard.lookup_source()

# %%
assert crash.status != 0, "the script should have failed"
assert "Ranks 0 and 1 failed:" in crash.output, "every rank should have failed, with the same error"
assert "\nKeyError: 0\n" in crash.output, "the error should have been KeyError: 0"
assert set(innermost) == {(where.file.name, where.line)}, "the line is not the lookup"
assert "\nok" not in crash.output, "no rank should have come to the end"

# %% [markdown]
# The script never reached a forward pass. `engine.compile()` called `init_z3`, which loops over **all** parameters of the module and looks each one up in a dictionary by its `ds_id`. The first look-up failed, and the missing key is `0`.
#
# ## Which parameter is 0?
#
# DeepSpeed numbers parameters as ZeRO-3 partitions them; the number is the parameter's `ds_id`. Start two ranks behind this notebook, make a ZeRO-3 engine of the same two layers there (not compiled, so that it survives), and ask it. A `%%px` cell runs on every rank; `ranks.start` gives the ranks the variables that are passed to it, here `seed`.

# %%
group = ranks.start(world_size, device, guard="off", backend=backend, seed=seed)

# %%
# %%px
from dskit.experiments.training import RunSettings, make_engine

engine = make_engine(RunSettings(mode="zero3", seed=seed))
for name, parameter in engine.module.named_parameters():
    state = "trainable" if parameter.requires_grad else "frozen"
    print(f"ds_id {parameter.ds_id}: {name}, {state}")

# %%
named = group.pull("[(p.ds_id, n, p.requires_grad) for n, p in engine.module.named_parameters()]")
assert all(on_rank == named[0] for on_rank in named), "the ranks number parameters differently"
key = int(re.search(r"KeyError: (\d+)", crash.output)[1])
name, requires_grad = {ds_id: (n, grad) for ds_id, n, grad in named[0]}[key]
print(f"KeyError: {key} is {name}, requires_grad={requires_grad}")
assert name == "frozen.weight" and not requires_grad
group.stop()

# %% [markdown]
# ## Key points
#
# - With DeepCompile switched on, `engine.compile()` under ZeRO-3 fails as soon as one parameter is frozen, before any training step.
# - The number in `KeyError: 0` is a `ds_id`: here the weight of the frozen layer.
# - It fails the same way on every rank, so nothing hangs.
#
# Why is a frozen parameter not in that dictionary, and does it need to be? That is [02_inside_init_z3](02_inside_init_z3.ipynb).
