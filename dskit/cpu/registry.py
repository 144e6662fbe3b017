"""Parameters that DeepCompile registered, and which of them are gathered right now.

The native layer keeps the same book (``DSParamRegistry`` in ``csrc/includes/deepcompile.h``). Here every
look-up that the native one would answer with undefined behaviour is an error that names the parameter.
"""

import math
from collections.abc import Callable
from dataclasses import dataclass, field

import torch

from dskit.errors import DskitError


class RuntimeContractError(DskitError, RuntimeError):
    """A compiled graph asked the CPU runtime for something that would corrupt data in silence on a GPU."""


@dataclass
class RegisteredParam:
    """One ZeRO-3 parameter as ``init_z3`` registered it.

    Attributes:
        ds_id: the parameter's id in DeepSpeed.
        shape: shape of the whole parameter.
        shard: this rank's shard, 1-D, ``ceil(numel / world_size)`` elements (the last shard is padded).
        grad_buffer: this rank's gradient partition, 1-D and as long as the shard; empty if frozen.
        persistent: whether the gathered parameter is kept until the optimizer changes it.
        grad_dtype: dtype in which gradients are reduced, or None for the gradient's own.
        gathered: the gathered buffer, 1-D, ``world_size * len(shard)`` elements, or None.
        valid: whether ``gathered`` holds this step's values.
        pending: the all-gather that fills ``gathered``, until somebody waited for it.
    """

    ds_id: int
    shape: tuple[int, ...]
    shard: torch.Tensor
    grad_buffer: torch.Tensor
    persistent: bool
    grad_dtype: torch.dtype | None
    gathered: torch.Tensor | None = None
    valid: bool = False
    pending: torch.distributed.Work | None = None

    @property
    def numel(self) -> int:
        """Elements of the whole parameter, without padding."""
        return math.prod(self.shape)

    def wait(self) -> None:
        """Block until a gather that is under way has filled the buffer."""
        if self.pending is not None:
            self.pending.wait()
            self.pending = None

    def drop(self) -> None:
        """Forget the gathered buffer; its memory goes when the graph's last view of it goes."""
        self.wait()
        self.gathered, self.valid = None, False

    def view(self, dtype: torch.dtype) -> torch.Tensor:
        """The gathered parameter in its true shape, cast if it was gathered in another dtype."""
        if self.gathered.dtype != dtype:
            self.wait()
        return self.gathered.to(dtype)[: self.numel].view(self.shape)


@dataclass
class ParamRegistry:
    """All registered parameters of one engine, by ds_id.

    Attributes:
        name_of: gives a parameter's name from its ds_id, for messages.
    """

    name_of: Callable[[int], str]
    params: dict[int, RegisteredParam] = field(default_factory=dict)

    def __getitem__(self, ds_id: int) -> RegisteredParam:
        try:
            return self.params[ds_id]
        except KeyError:
            raise RuntimeContractError(
                f"A compiled graph used parameter ds_id {ds_id}, which was never registered.",
                f"Registered are {len(self.params)} parameters: ds_ids {sorted(self.params)}.",
                "Compile the engine after the last parameter was added, and use one engine for each process.",
            ) from None

    def register(self, param: RegisteredParam) -> None:
        """Add a parameter; its gradient partition starts at zero."""
        param.grad_buffer.zero_()
        self.params[param.ds_id] = param

    def describe(self, ds_id: int) -> str:
        """``name (ds_id n)`` for messages."""
        return f"{self.name_of(ds_id)} (ds_id {ds_id})"
