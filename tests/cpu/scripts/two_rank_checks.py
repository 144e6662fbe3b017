"""Checks of the CPU runtime that need two ranks, or the operators, which are registered once a process.

Usage: python two_rank_checks.py FOLDER RANK DEEPSPEED_ROOT

Every function whose name starts with ``check_`` runs on both ranks with a process group of its own, so that
a failure leaves the others in step. FOLDER/rank-N.json gets the traceback of each, or "".
"""

import json
import sys
import traceback
from datetime import timedelta
from pathlib import Path
from types import SimpleNamespace

import torch
import torch.distributed as dist
from torch._subclasses.fake_tensor import FakeTensorMode

from dskit.cpu import handle as handle_module
from dskit.cpu import operators
from dskit.cpu.handle import CpuHandle
from dskit.errors import DskitError

WORLD, GRAPH = 2, 140_000_000_000_000
NAMES = {0: "frozen.weight", 1: "layer.weight", 2: "layer.bias"}
WHOLE = {0: torch.arange(8.0).view(2, 4), 1: torch.arange(5.0) + 0.3, 2: torch.arange(21.0).view(3, 7)}
dc = torch.ops.dc


def shard(ds_id, dtype=torch.float32):
    """This rank's part; the padding of the last shard holds NaN, which must never come out."""
    flat = WHOLE[ds_id].flatten().to(dtype)
    length = -(-flat.numel() // WORLD)
    padded = torch.full((length * WORLD,), torch.nan, dtype=dtype)
    padded[: flat.numel()] = flat
    return padded.chunk(WORLD)[RANK].clone()


def begin(handle, group, dtype=torch.float32, grad_dtype=None):
    """A fresh engine with the three parameters in one graph."""
    handle.__init__()  # as in a fresh process; the operators stay with the object
    config = SimpleNamespace(symmetric_memory=False, free_activation_threshold=0)
    handle.init(group, config, reduce_bucket_size=1000)
    for ds_id, whole in WHOLE.items():
        part = shard(ds_id, dtype)
        grads = torch.empty(0) if ds_id == 0 else torch.empty(part.numel())
        handle.register_z3_param(ds_id, whole.shape, part, grads, False, grad_dtype)
    handle.register_graph_z3(GRAPH, list(WHOLE))


def empty():
    """What ZeRO-3 leaves of a parameter in the module; the graphs pass it along."""
    return torch.empty(0)


def gather(ds_id, dtype=None):
    started = dc.allgather_param(empty(), GRAPH, ds_id, dtype=dtype)
    return dc.wait_allgather(started, GRAPH, ds_id)


def expect(actual, wanted):
    torch.testing.assert_close(actual, wanted, rtol=0, atol=0)


# ---- two ranks --------------------------------------------------------------------------------------------


def check_gathered_shards_are_the_whole_parameter_without_its_padding(handle):
    for ds_id, whole in WHOLE.items():
        expect(gather(ds_id), whole)


def check_a_cast_is_part_of_the_gather(handle):
    weight = gather(2, torch.bfloat16)
    expect(weight, WHOLE[2].bfloat16())
    assert handle.registry[2].gathered.dtype is torch.bfloat16


def check_several_parameters_are_prefetched_then_gathered(handle):
    dc.prefetch_params_fused(
        GRAPH, [empty()] * 3, [0, 1, 2], dtypes=[torch.float32, torch.float32, torch.float16]
    )
    assert all(handle.registry[ds_id].valid for ds_id in WHOLE)
    expect(gather(1), WHOLE[1])
    handle.registry[1].shard.fill_(-1)  # too late to matter: it is gathered once
    expect(gather(1), WHOLE[1])
    expect(gather(2, torch.float16), WHOLE[2].half())
    expect(gather(0), WHOLE[0])


def check_a_prefetch_takes_every_dtype_that_is_trained_in(handle):
    for dtype in (torch.float16, torch.bfloat16, torch.float32, torch.float64):
        dc.prefetch_params_fused(GRAPH, [empty()], [1], dtypes=[dtype])
        assert handle.registry[1].gathered.dtype is dtype
        expect(gather(1, dtype), WHOLE[1].to(dtype))
        handle.invalidate_gathered_param(1)


def check_a_persistent_parameter_is_gathered_again_after_a_step(handle):
    handle.set_persistent(1)
    for follows, difference in ((False, 0.0), (True, 0.0), (False, 10.0)):
        weight = gather(1)
        expect(weight, WHOLE[1] + difference)
        dc.release_param(weight, GRAPH, 1, 1)
        handle.start_backward(follows)
        dc.end_backward([None], GRAPH, True)
        handle.registry[1].shard.copy_(shard(1) + 10)


def check_a_reduce_averages_over_the_ranks_and_pads(handle):
    for ds_id in (1, 2):
        dc.reduce_grad(WHOLE[ds_id] * (2 * RANK + 1), GRAPH, ds_id)  # once and three times: twice on average
    dc.end_backward([None], GRAPH, True)
    for ds_id in (1, 2):
        expect(handle.registry[ds_id].grad_buffer, torch.nan_to_num(shard(ds_id) * 2, nan=0.0))


def check_micro_batches_accumulate_until_a_step(handle):
    wanted = 0
    for micro_batch, follows in enumerate((False, False, True)):
        handle.start_backward(follows)
        dc.reduce_grad(WHOLE[1] * (micro_batch + 1), GRAPH, 1)
        dc.end_backward([None], GRAPH, True)
        wanted = wanted + torch.nan_to_num(shard(1) * (micro_batch + 1), nan=0.0)
        expect(handle.registry[1].grad_buffer, wanted)
    handle.start_backward(True)
    dc.reduce_grad(WHOLE[1], GRAPH, 1)
    dc.end_backward([None], GRAPH, True)
    expect(handle.registry[1].grad_buffer, torch.nan_to_num(shard(1), nan=0.0))


def check_half_precision_does_not_overflow_in_the_sum(handle):
    dc.reduce_grad(torch.full((5,), 60000.0, dtype=torch.float16), GRAPH, 1)
    dc.end_backward([None], GRAPH, True)
    wanted = torch.tensor([60000.0] * 3 if RANK == 0 else [60000.0] * 2 + [0.0])
    expect(handle.registry[1].grad_buffer, wanted)


def check_gradients_cross_the_ranks_in_the_expected_dtype(handle):
    begin(handle, handle.group, grad_dtype=torch.float32)
    grad = torch.full((5,), 1.0 + RANK / 128, dtype=torch.bfloat16)  # their mean is no bf16 number
    dc.reduce_grad(grad, GRAPH, 1)
    dc.end_backward([None], GRAPH, True)
    expect(handle.registry[1].grad_buffer[:2], torch.full((2,), 1 + 1 / 256))


# ---- the operators ----------------------------------------------------------------------------------------


def check_a_wait_and_a_release_give_their_argument_back(handle):
    started = dc.allgather_param(empty(), GRAPH, 1)
    assert dc.wait_allgather(started, GRAPH, 1).data_ptr() == started.data_ptr()
    value = torch.ones(2)
    assert dc.release_param(value, GRAPH, 1, 1).data_ptr() == value.data_ptr()
    assert handle.registry[1].gathered is None


def check_shapes_of_fake_tensors(handle):
    with FakeTensorMode():
        fake = torch.empty(0, dtype=torch.bfloat16)
        weight = dc.allgather_param(fake, GRAPH, 2)
        assert weight.shape == (3, 7) and weight.dtype is torch.float32 and weight.device.type == "cpu"
        assert dc.allgather_param(fake, GRAPH, 2, dtype=torch.float16).dtype is torch.float16
        assert dc.wait_allgather(weight, GRAPH, 2).shape == (3, 7)
        assert dc.release_param(weight, GRAPH, 2, 1).shape == (3, 7)
        assert dc.reduce_grad(weight, GRAPH, 2).shape == (0,)
        dc.prefetch_params_fused(GRAPH, [fake], [2])
        dc.free_tensors([weight])
        assert weight.shape == (3, 7), "only real tensors are freed"
        dc.end_backward([weight], GRAPH, True)
    assert not any(param.valid for param in handle.registry.params.values()), "a trace gathers nothing"


def check_shapes_on_the_meta_device(handle):
    weight = dc.allgather_param(torch.empty(0, device="meta"), GRAPH, 2, dtype=torch.bfloat16)
    assert weight.is_meta and weight.shape == (3, 7) and weight.dtype is torch.bfloat16


def check_the_end_of_a_backward_takes_no_tensor_or_some(handle):
    for dependencies in ([None], [None, torch.ones(1)], [torch.empty(0)]):
        dc.reduce_grad(torch.ones(5), GRAPH, 1)
        dc.end_backward(dependencies, GRAPH, True)
        assert not handle.executors[GRAPH].bucket.tasks


def check_freed_tensors_are_empty(handle):
    tensors = [torch.ones(3), torch.ones(2, 2)]
    dc.free_tensors(tensors)
    assert [tensor.numel() for tensor in tensors] == [0, 0]


def check_errors_come_through_the_dispatcher_with_the_name(handle):
    for call, text in (
        (lambda: dc.reduce_grad(torch.zeros(8), GRAPH, 0), "frozen.weight (ds_id 0)"),
        (lambda: dc.reduce_grad(torch.zeros(4), GRAPH, 1), "layer.weight (ds_id 1) has the wrong size"),
        (lambda: dc.allgather_param(empty(), GRAPH, 9), "ds_id 9, which was never registered"),
        (lambda: dc.release_param(empty(), GRAPH, 2, 1), "release layer.bias (ds_id 2)"),
        (lambda: dc.end_backward([None], 77, True), "id 77"),
        (lambda: dc.offload_tensor(torch.ones(1), GRAPH, 1), "dc::offload_tensor"),
        (lambda: dc.offload_tensor(torch.ones(1, device="meta"), GRAPH, 1), "dc::offload_tensor"),
    ):
        try:
            call()
        except Exception as error:
            assert text in str(error), f"{text!r} is not in {error}"
            assert isinstance(error, DskitError), type(error)
        else:
            raise AssertionError(f"nothing was raised where {text!r} was expected")


def check_a_second_registration_is_refused(handle):
    try:
        operators.register(CpuHandle(), ROOT)
    except DskitError as error:
        assert "already has an operator dc::" in error.found, error
    else:
        raise AssertionError("the operators were registered twice")


def check_the_operator_for_tests_of_native_code_is_left_out(handle):
    assert not hasattr(dc, "test_call")
    assert hasattr(dc, "reload_tensor")


def run(check, handle) -> str:
    """Run one check with a group of its own; returns its traceback, or nothing."""
    try:
        begin(handle, dist.new_group(timeout=timedelta(seconds=10)))
        check(handle)
    except Exception:
        return traceback.format_exc()
    return ""


if __name__ == "__main__":
    folder, ROOT = Path(sys.argv[1]), Path(sys.argv[3])
    RANK = int(sys.argv[2])
    handle_module.param_name = NAMES.get
    dist.init_process_group(
        "gloo",
        init_method=f"file://{folder}/store",
        rank=RANK,
        world_size=WORLD,
        timeout=timedelta(seconds=30),
    )
    handle = CpuHandle()
    library = operators.register(handle, ROOT)
    checks = {name: check for name, check in list(globals().items()) if name.startswith("check_")}
    results = {name: run(check, handle) for name, check in checks.items()}
    (folder / f"rank-{RANK}.json").write_text(json.dumps(results))
    dist.barrier()
    dist.destroy_process_group()
