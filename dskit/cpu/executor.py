"""What one compiled graph does with parameters: gather, wait, release, reduce.

Contract: ``csrc/compile/z3.cpp`` and ``csrc/includes/deepcompile.h`` of DeepSpeed. On a GPU the
collectives run on streams of their own; here a gather is started without waiting and ``wait_allgather``
waits for it, which keeps the same freedom to overlap.
"""

from dataclasses import dataclass

import torch
import torch.distributed as dist

from dskit.cpu.registry import ParamRegistry, RegisteredParam, RuntimeContractError

# torch 2.13 gave them new names and warns about the old ones.
_all_gather = getattr(dist, "all_gather_single", dist.all_gather_into_tensor)
_reduce_scatter = getattr(dist, "reduce_scatter_single", dist.reduce_scatter_tensor)


@dataclass
class ReduceTask:
    """A gradient that waits in the bucket: ``send`` is 1-D, padded to ``world_size`` equal parts."""

    ds_id: int
    send: torch.Tensor


class ReduceBucket:
    """Gradients of one graph on their way to a reduce-scatter.

    Args:
        capacity: elements after which the bucket is flushed (``reduce_bucket_size`` of the config).
    """

    def __init__(self, capacity: int):
        self.capacity = capacity
        self.tasks: list[ReduceTask] = []

    @property
    def numel(self) -> int:
        """Elements that wait."""
        return sum(task.send.numel() for task in self.tasks)

    def is_full_for(self, numel: int) -> bool:
        """Whether a gradient of ``numel`` elements has to wait for a flush."""
        return bool(self.tasks) and self.numel + numel > self.capacity


class GraphExecutor:
    """State of one compiled graph.

    Args:
        registry: the engine's parameters, shared between graphs.
        group: the process group over which parameters are sharded.
        ds_ids: the parameters that this graph uses.
        bucket_size: capacity of the reduce bucket, in elements.
    """

    def __init__(self, registry: ParamRegistry, group, ds_ids: list[int], bucket_size: int):
        self.registry = registry
        self.group = group
        self.world_size = dist.get_world_size(group)
        self.uses_left = dict.fromkeys(ds_ids, 0)
        self.accumulates = dict.fromkeys(ds_ids, False)
        self.bucket = ReduceBucket(bucket_size)
        self.step_follows = False

    def gather(self, ds_id: int, dtype: torch.dtype | None) -> torch.Tensor:
        """Start an all-gather, unless the parameter is gathered already.

        Returns:
            The parameter in its true shape; its values are there after ``wait``.
        """
        param = self._param(ds_id, "gather")
        dtype = dtype or param.shard.dtype
        if not param.valid:
            self._launch(param, dtype)
        return param.view(dtype)

    def prefetch(self, ds_ids: list[int], dtypes: list[torch.dtype] | None) -> None:
        """Start the all-gathers of several parameters ahead of their use."""
        for i, ds_id in enumerate(ds_ids):
            param = self._param(ds_id, "prefetch")
            if not param.valid:
                self._launch(param, dtypes[i] if dtypes else param.shard.dtype)

    def wait(self, ds_id: int) -> None:
        """Block until the parameter's all-gather is done."""
        self._param(ds_id, "wait for").wait()

    def release(self, ds_id: int, n_users: int, profiling: bool = False) -> None:
        """Count one use of a gathered parameter; after the last of ``n_users`` it is let go.

        Args:
            ds_id: the parameter.
            n_users: how often the graph releases it.
            profiling: the profiler lets a parameter go right after it timed the gather, so that there
                may be nothing left to release.
        """
        param = self._param(ds_id, "release")
        left = self.uses_left[ds_id] or n_users
        self.uses_left[ds_id] = left - 1
        if left == 1 and not param.persistent:
            if param.gathered is None and not profiling:
                raise RuntimeContractError(
                    f"A compiled graph tried to release {self.registry.describe(ds_id)}.",
                    "The parameter is not gathered: the release has no gather, or there is one too many.",
                    "This is a fault in a compile pass; run without that pass to find it.",
                )
            param.drop()

    def reduce(self, grad: torch.Tensor, ds_id: int) -> None:
        """Put a gradient into the bucket; the flush averages it over the ranks."""
        param = self._param(ds_id, "reduce the gradient of")
        self._check_reducible(param, grad)
        grad = grad.detach().to(param.grad_dtype or grad.dtype).reshape(-1)
        send = grad.new_zeros(param.grad_buffer.numel() * self.world_size)
        if self.bucket.is_full_for(send.numel()):
            self.flush()
        send[: grad.numel()] = grad
        self.bucket.tasks.append(ReduceTask(ds_id, send))

    def flush(self) -> None:
        """Average the waiting gradients over the ranks into this rank's gradient partitions."""
        # Divided before the sum, as native code does: fp16 gradients would overflow in the sum.
        for task in self.bucket.tasks:
            received = task.send.new_empty(task.send.numel() // self.world_size)
            _reduce_scatter(received, task.send.div_(self.world_size), group=self.group)
            buffer = self.registry[task.ds_id].grad_buffer
            if self.accumulates[task.ds_id]:
                buffer.add_(received.to(buffer.dtype))
            else:
                buffer.copy_(received)
            self.accumulates[task.ds_id] = True
        self.bucket.tasks.clear()

    def end_backward(self) -> None:
        """Flush, and before an optimizer step forget every gathered value: the step makes it stale."""
        self.flush()
        if self.step_follows:
            for ds_id in self.accumulates:
                self.accumulates[ds_id] = False
                self.registry[ds_id].valid = False

    def has_param(self, ds_id: int) -> bool:
        """Whether this graph uses the parameter."""
        return ds_id in self.uses_left

    def _param(self, ds_id: int, action: str) -> RegisteredParam:
        param = self.registry[ds_id]
        if not self.has_param(ds_id):
            raise RuntimeContractError(
                f"A compiled graph tried to {action} {self.registry.describe(ds_id)}.",
                f"The graph was registered with other parameters: ds_ids {sorted(self.uses_left)}.",
                "This is a fault in a compile pass; run without that pass to find it.",
            )
        return param

    def _launch(self, param: RegisteredParam, dtype: torch.dtype) -> None:
        param.wait()
        shard = param.shard.detach().to(dtype).contiguous()
        size = shard.numel() * self.world_size
        if param.gathered is None or param.gathered.numel() != size or param.gathered.dtype != dtype:
            param.gathered = shard.new_empty(size)
        param.pending = _all_gather(param.gathered, shard, group=self.group, async_op=True)
        param.valid = True

    def _check_reducible(self, param: RegisteredParam, grad: torch.Tensor) -> None:
        if param.grad_buffer.numel() == 0 and param.numel > 0:
            raise RuntimeContractError(
                f"A gradient of {self.registry.describe(param.ds_id)} was to be reduced.",
                "Its gradient partition is empty: the parameter is frozen, or the optimizer does not own it.",
                "Set requires_grad and pass the parameter to the optimizer before deepspeed.initialize().",
            )
        if grad.numel() != param.numel:
            raise RuntimeContractError(
                f"A gradient of {self.registry.describe(param.ds_id)} has the wrong size.",
                f"The gradient has {grad.numel()} elements, the parameter {param.numel}.",
                "This is a fault in a compile pass; run without that pass to find it.",
            )
