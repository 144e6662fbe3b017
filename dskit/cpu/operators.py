"""Registration of the ``torch.ops.dc`` operators with the schemas of the installed release."""

from pathlib import Path

import torch

from dskit.cpu.handle import CpuHandle
from dskit.cpu.schemas import handle_calls, operator_schemas
from dskit.errors import DskitError

# Serves every call on real tensors, and calls none of whose arguments the dispatcher sees as a tensor
# (end_backward, whose dependencies have type Any).
_RUN_KEY = "CompositeExplicitAutograd"

# Served by no graph that the default schedule makes; a call says so by name.
_TEST_ONLY = {"test_call"}


def register(handle: CpuHandle, deepspeed_root: Path) -> torch.library.Library:
    """Define the operators and route them to ``handle``.

    Args:
        handle: serves the operators.
        deepspeed_root: folder of the installed ``deepspeed`` package.

    Returns:
        The library; the operators live as long as it does.

    Raises:
        DskitError: the native operators are loaded in this process already.
    """
    library = torch.library.Library("dc", "FRAGMENT")
    for name, schema in operator_schemas(deepspeed_root).items():
        if name in _TEST_ONLY:
            continue
        if hasattr(torch.ops.dc, name):
            raise DskitError(
                "The CPU runtime could not be installed.",
                f"This process already has an operator dc::{name}, from DeepSpeed's native layer.",
                "Start a fresh process for CPU ranks.",
            )
        library.define(schema)
        run = getattr(handle, f"op_{name}", None) or _unserved(name)
        library.impl(name, run, _RUN_KEY)
        library.impl(name, getattr(handle, f"meta_{name}", None) or _unserved(name), "Meta")
    return library


def unserved(handle: CpuHandle, deepspeed_root: Path) -> list[str]:
    """Operators and calls that the release declares and the CPU runtime does not serve."""
    operators = [f"dc::{name}" for name in operator_schemas(deepspeed_root) if name not in _TEST_ONLY]
    missing = [op for op in operators if not hasattr(handle, "op_" + op.removeprefix("dc::"))]
    return missing + [call for call in handle_calls(deepspeed_root) if not hasattr(handle, call)]


def _unserved(name: str):
    def refuse(*args, **kwargs):
        raise DskitError(
            f"A compiled graph called dc::{name}.",
            "The CPU runtime does not serve this operator.",
            "Leave out the compile option that needs it (offloading), or run on CUDA ranks.",
        )

    return refuse
