# %% [markdown]
# # 03 The guarded fix
#
# **After this notebook you can** state the fix as a one-line diff, switch it on and off without an edit in site-packages, and show that it changes nothing but the crash: training computes what it would compute without sharding, up to rounding.
#
# **Time**: 8 minutes to read, about 1 minute to run. **Needs**: two CPU cores; a GPU is used if there is one. [02_inside_init_z3](02_inside_init_z3.ipynb) first.

# %% tags=["parameters"]
world_size = 2  # ranks
device = "auto"  # auto, cuda, cuda-shared or cpu
backend = "inductor"  # what engine.compile() compiles with: inductor or eager
steps = 10  # training steps; DeepCompile compiles again at step 5, so take at least 6
seed = 0
dtype = "fp32"  # fp32, bf16 or fp16

# %% [markdown]
# ## One condition
#
# What does the installed release have, and what is missing? Both are read from its source; DeepSpeed's version number is not asked, for it can lie (a source build may call itself 0.19.6 and lack the fix).

# %%
from dskit import guard

state = guard.state()
print(f"DeepSpeed {state.release}, {state.file.name}, line {state.line}: {state.source}")

# %%
from IPython.display import Markdown

patch = guard.diff("on") or guard.diff("off")  # the other way round where the release has the fix
Markdown(f"```diff\n{patch}```")

# %%
changed = [line for line in patch.splitlines() if line[:1] in "+-" and line[:3] not in ("+++", "---")]
assert len(changed) == 2, changed
assert all("use_opt" in line for line in changed) and sum("requires_grad" in line for line in changed) == 1

# %% [markdown]
# A frozen parameter keeps the empty buffer that was made one line above, and the loop goes on to register it. That is the whole fix.
#
# `guard.on()` makes this change in the running process: it takes the function's own source, changes that one condition, compiles it under the original file name and line numbers, and swaps the function's code. No file is written. `ranks.start(..., guard="on")` does it on every rank.
#
# ## Does it train right?
#
# The claim: with the condition, DeepCompile computes what plain training computes. The baseline is ZeRO-0 without compilation, where nothing is sharded. Each engine gets fresh ranks, so the baseline gets its own.

# %%
from dskit import plots, ranks

common = dict(seed=seed, dtype=dtype, steps=steps, backend=backend)
group = ranks.start(world_size, device, guard="on", **common)

# %%
# %%px
from dskit.experiments.training import RunSettings, make_engine, train

settings = RunSettings(mode="zero0", dtype=dtype, steps=steps, seed=seed)
losses = train(make_engine(settings), settings)

# %%
baseline = [row for rank in group.pull("losses") for row in rank]
group = ranks.start(world_size, device, guard="on", **common)

# %% [markdown]
# The same model, seed and data under ZeRO-3 with DeepCompile. The first five steps are DeepCompile's warm-up: it gathers each parameter just before its use and measures. At step 5 it compiles again, starts gathers ahead of their use (prefetch), and keeps gathered what memory allows (selective gather). Each rank copies its shards before the first step and after the last.

# %%
# %%px
from dskit.experiments.training import RunSettings, make_engine, same_bits, shards, train

settings = RunSettings(mode="deepcompile", backend=backend, dtype=dtype, steps=steps, seed=seed)
engine = make_engine(settings)
frozen_before, trainable_before = shards(engine, frozen=True), shards(engine, frozen=False)
losses = train(engine, settings)
frozen_unchanged = same_bits(frozen_before, shards(engine, frozen=True))
trained = not same_bits(trainable_before, shards(engine, frozen=False))
print("frozen shards bit-identical:", frozen_unchanged, "| trainable shards changed:", trained)

# %%
compiled = [row for rank in group.pull("losses") for row in rank]
figure = plots.plot_losses_and_difference(baseline, compiled, ("ZeRO-0, eager", f"DeepCompile, {backend}"))

# %%
# What each dtype's rounding allows; the eager backend runs the very operations of the baseline.
exact = backend == "eager" and group.placement.device == "cpu"
allowed = {"fp32": 0.0 if exact else 1e-6, "bf16": 0.02, "fp16": 0.005}[dtype]
difference = plots.loss.largest_difference(baseline, compiled)
print(
    f"largest difference over {world_size} ranks and {steps} steps: {difference:.3g} (allowed: {allowed:g})"
)
assert len(compiled) == len(baseline) == world_size * steps
assert difference <= allowed
assert all(group.pull("frozen_unchanged")), "a frozen shard changed"
assert all(group.pull("trained")), "nothing was trained"
assert compiled[steps - 1]["loss"] < compiled[0]["loss"], "the loss did not fall"

# %% [markdown]
# ## Off again
#
# The switch works in both directions. Without the condition, on fresh ranks, the same engine fails as it did in the first notebook. (`--raises` makes the cell pass only if every rank raises just that.)

# %%
group = ranks.start(world_size, device, guard="off", **common)

# %%
# %%px --raises KeyError
from dskit.experiments.training import RunSettings, make_engine

make_engine(RunSettings(mode="deepcompile", backend=backend, dtype=dtype, steps=steps, seed=seed))

# %% [markdown]
# ## Key points
#
# - The fix is one condition, `and p.requires_grad`, in the loop of `init_z3`.
# - With it, losses on both sides of the warm-up boundary equal those of plain training (to the last bit with the backend `eager` on a CPU, within 1e-6 with `inductor`), and frozen shards keep every bit.
# - dskit switches it in the running process, in both directions, and writes no file. In a script: `dskit run --guard on train.py`.
# - After a failed `compile()` the process is spent: start fresh ranks.
