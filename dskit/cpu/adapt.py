"""Where DeepCompile's Python code takes a GPU for granted, adapted from outside.

Each function wraps one thing that DeepSpeed looks up by name when it runs. Nothing is copied and nothing
is edited: the passes, the profilers and the backends that run are DeepSpeed's own.
"""

import functools
import operator

import torch
from torch._subclasses.fake_tensor import unset_fake_temporarily

# The prefetch pass times all-gathers of 2, 4, ... 2**30 bf16 elements and interpolates. On gloo the large
# ones take minutes; beyond 2**MAX_GATHER_LOG2 the interpolation goes on as a straight line instead.
MAX_GATHER_LOG2 = 20


def declare_support() -> None:
    """Let DeepSpeed register its compile passes, which it does only where DeepCompile is supported."""
    from deepspeed.compile import util
    from deepspeed.runtime import engine

    util.is_deepcompile_supported = engine.is_deepcompile_supported = lambda: True
    if not hasattr(util, "sym_size_ops"):  # defined at import, on CUDA alone
        comparisons = {operator.ge, operator.le, operator.eq, operator.ne, operator.gt, operator.lt}
        util.sym_size_ops = comparisons | {torch.ops.aten.sym_size.int, operator.getitem}


def run_passes_without_python_dispatcher() -> None:
    """Keep the Python dispatcher off while passes run: they call collectives on real tensors.

    With it on (Dynamo is compiling), gloo's enqueue holds the interpreter lock and waits for gloo's queue,
    while gloo's worker holds the queue and waits for the interpreter lock to drop a tensor: a deadlock.
    """
    from deepspeed.compile import backend

    run_opt_passes = backend.run_opt_passes

    @functools.wraps(run_opt_passes)
    def wrapped(*args, **kwargs):
        with torch._C._DisablePythonDispatcher():
            return run_opt_passes(*args, **kwargs)

    backend.run_opt_passes = wrapped


def limit_gather_profile() -> None:
    """Stop the all-gather profile of the prefetch pass at sizes that a CPU rank gathers in milliseconds."""
    from deepspeed.compile.profilers import comm_profile

    run_all_gather = comm_profile.run_all_gather

    @functools.wraps(run_all_gather)
    def limited(device, dtype, maxsize, *args, **kwargs):
        with unset_fake_temporarily():
            return run_all_gather(device, dtype, min(maxsize, MAX_GATHER_LOG2), *args, **kwargs)

    comm_profile.run_all_gather = limited


def use_torch_adam() -> None:
    """Let DeepSpeed's fused Adam run on PyTorch's kernel instead of an extension compiled at first use."""
    from deepspeed.ops.adam import fused_adam

    from dskit.cpu.adam import FusedAdamOnTorch

    fused_adam.FusedAdamBuilder = FusedAdamOnTorch
