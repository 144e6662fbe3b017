"""The object that stands where DeepSpeed keeps its native module (``deepspeed.compile.util.dc_handle``).

Its methods are the calls that DeepSpeed's Python code makes; the functions that start with ``op_`` serve
the ``torch.ops.dc`` operators that the compiled graphs call.
"""

import torch

from dskit.cpu.executor import GraphExecutor
from dskit.cpu.registry import ParamRegistry, RegisteredParam, RuntimeContractError
from dskit.errors import DskitError

# The dispatcher hands a list of dtypes over as numbers (c10/core/ScalarType.h), a single one as a dtype.
_DTYPES = {5: torch.float16, 6: torch.float32, 7: torch.float64, 15: torch.bfloat16}


def param_name(ds_id: int) -> str:
    """Name of a parameter from its ds_id, as DeepSpeed recorded it when the engine was made."""
    from deepspeed.utils import debug

    names = {getattr(p, "ds_id", None): name for p, name in debug.param_names.items()}
    return names.get(ds_id, "unnamed parameter")


class CpuHandle:
    """DeepCompile's native layer for one rank with no GPU."""

    def __init__(self):
        self.registry = ParamRegistry(param_name)
        self.executors: dict[int, GraphExecutor] = {}
        self.profiling = False
        self.used = False
        self.group = None
        self.bucket_size = 0
        self.free_threshold = 0

    # ---- calls of DeepSpeed's Python code -------------------------------------------------------------

    def init(self, group, config, reduce_bucket_size: int) -> None:
        """Begin an engine.

        Args:
            group: the process group over which parameters are sharded.
            config: DeepSpeed's ``CompileConfig``.
            reduce_bucket_size: elements of the reduce bucket.

        Raises:
            DskitError: the configuration asks for something that has no meaning on a CPU, or this process
                has had an engine.
        """
        if config.symmetric_memory:
            raise DskitError(
                'The configuration has "symmetric_memory": true.',
                "Symmetric memory is a way for GPUs to write into each other's memory; CPU ranks have none.",
                'Leave it out of the "compile" section, or run on CUDA ranks.',
            )
        if self.used:
            # The first engine's hooks stay in DeepSpeed for good and would run in this one's backward pass.
            raise DskitError(
                "A second DeepCompile engine was to be compiled in this process.",
                "DeepCompile changes the process for good when the first engine is compiled.",
                "Give each engine fresh ranks: ranks.start() in a notebook, a run of its own for a script.",
            )
        self.used = True
        self.executors.clear()
        self.group, self.bucket_size = group, reduce_bucket_size
        self.free_threshold = config.free_activation_threshold

    def register_z3_param(self, ds_id, shape, shard, grad_buffer, persistent, grad_dtype=None) -> None:
        """Take a ZeRO-3 parameter into the book. Releases before 0.19.2 pass no ``grad_dtype``."""
        param = RegisteredParam(ds_id, tuple(shape), shard, grad_buffer, persistent, grad_dtype)
        self.registry.register(param)

    def register_graph_z3(self, graph_id: int, ds_ids: list[int]) -> None:
        """Take a graph into the book, with the parameters that it uses."""
        self.executors[graph_id] = GraphExecutor(self.registry, self.group, ds_ids, self.bucket_size)

    def set_persistent(self, ds_id: int) -> None:
        """Keep a parameter gathered between its uses, and gather it now."""
        self.registry[ds_id].persistent = True
        for executor in self.executors.values():
            if executor.has_param(ds_id):
                executor.gather(ds_id, None)
                executor.wait(ds_id)

    def start_forward(self) -> None:
        """Nothing to prepare on a CPU."""

    def end_forward(self) -> None:
        """Nothing to tidy on a CPU."""

    def start_backward(self, step_follows: bool) -> None:
        """Say whether an optimizer step follows this backward pass (a gradient accumulation boundary)."""
        for executor in self.executors.values():
            executor.step_follows = step_follows

    def enable_profiling(self, enable: bool) -> None:
        """While profiling, gradients are not reduced."""
        self.profiling = enable

    def is_profiling(self) -> bool:
        """Whether a profiling run is under way."""
        return self.profiling

    def invalidate_gathered_param(self, ds_id: int) -> None:
        """Let a gathered parameter go, unless it is persistent."""
        param = self.registry[ds_id]
        if not param.persistent:
            param.drop()

    def clear_all_gathered_params(self) -> None:
        """Let every gathered parameter go that is not persistent."""
        for ds_id in self.registry.params:
            self.invalidate_gathered_param(ds_id)

    def reset(self) -> None:
        """Forget the graphs; the parameters stay."""
        self.executors.clear()

    def cleanup(self) -> None:
        """End an engine: let go of the graphs, the gathered parameters and the process group."""
        self.reset()
        for param in self.registry.params.values():
            param.drop()
        self.group = None

    # ---- operators ------------------------------------------------------------------------------------

    def op_allgather_param(self, shard, graph_id, ds_id, dtype=None):
        return self._executor(graph_id).gather(ds_id, dtype)

    def op_prefetch_params_fused(self, graph_id, params, ds_ids, dtypes=None):
        if dtypes is not None:
            dtypes = [_DTYPES.get(dtype, dtype) for dtype in dtypes]
        self._executor(graph_id).prefetch(ds_ids, dtypes)

    def op_wait_allgather(self, gathered, graph_id, ds_id):
        self._executor(graph_id).wait(ds_id)
        return gathered

    def op_release_param(self, value, graph_id, ds_id, n_users):
        self._executor(graph_id).release(ds_id, n_users, self.profiling)
        return value

    def op_reduce_grad(self, grad, graph_id, ds_id):
        if not self.profiling:
            self._executor(graph_id).reduce(grad, ds_id)
        return grad.new_empty(0)

    def op_free_tensors(self, tensors):
        for tensor in tensors:
            if not self.profiling and tensor.numel() > self.free_threshold:
                tensor.data = tensor.new_empty(0)

    def op_end_backward(self, deps, graph_id, release_reduce_buckets=True):
        self._executor(graph_id).end_backward()

    # Shapes alone, for tracing with fake tensors.

    def meta_allgather_param(self, shard, graph_id, ds_id, dtype=None):
        param = self.registry[ds_id]
        return torch.empty(param.shape, dtype=dtype or param.shard.dtype, device="meta")

    def meta_prefetch_params_fused(self, graph_id, params, ds_ids, dtypes=None):
        return None

    def meta_wait_allgather(self, gathered, graph_id, ds_id):
        return gathered

    def meta_release_param(self, value, graph_id, ds_id, n_users):
        return value

    def meta_reduce_grad(self, grad, graph_id, ds_id):
        return grad.new_empty(0)

    def meta_free_tensors(self, tensors):
        return None

    def meta_end_backward(self, deps, graph_id, release_reduce_buckets=True):
        return None

    def _executor(self, graph_id: int) -> GraphExecutor:
        try:
            return self.executors[graph_id]
        except KeyError:
            raise RuntimeContractError(
                f"A compiled graph with id {graph_id} ran that was never registered.",
                f"Registered are {len(self.executors)} graphs.",
                "A graph of an earlier engine was kept; use one engine for each process.",
            ) from None
