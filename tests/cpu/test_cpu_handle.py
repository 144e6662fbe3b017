"""The calls that DeepSpeed's Python code makes on the handle, and the operators behind the dispatcher."""

from types import SimpleNamespace

import pytest
import torch

from dskit.cpu import handle as handle_module
from dskit.cpu import operators
from dskit.cpu.handle import CpuHandle
from dskit.cpu.registry import RuntimeContractError
from dskit.errors import DskitError

GRAPH = 140_000_000_000_000  # DeepSpeed takes the graph's address


def config(**changes):
    """What the handle reads of DeepSpeed's ``CompileConfig``."""
    return SimpleNamespace(symmetric_memory=False, free_activation_threshold=10, **changes)


@pytest.fixture
def handle(solo, monkeypatch):
    """An engine with layer.weight (0), which trains, and frozen.weight (1), in one graph."""
    names = {0: "layer.weight", 1: "frozen.weight"}
    monkeypatch.setattr(handle_module, "param_name", names.get)
    handle = CpuHandle()
    handle.init(solo, config(), reduce_bucket_size=100)
    handle.register_z3_param(0, [2, 2], torch.arange(4.0), torch.empty(4), False)
    handle.register_z3_param(1, torch.Size([3]), torch.arange(3.0), torch.empty(0), False, torch.float32)
    handle.register_graph_z3(GRAPH, [0, 1])
    return handle


def gathered(handle):
    return [ds_id for ds_id, param in handle.registry.params.items() if param.gathered is not None]


def test_parameters_are_registered_with_and_without_a_gradient_dtype(handle):
    weight, frozen = handle.registry[0], handle.registry[1]
    assert (weight.shape, weight.grad_dtype) == ((2, 2), None)
    assert (frozen.shape, frozen.grad_dtype) == ((3,), torch.float32)


def test_symmetric_memory_is_refused(solo):
    with pytest.raises(DskitError, match="symmetric_memory") as caught:
        CpuHandle().init(solo, SimpleNamespace(symmetric_memory=True), reduce_bucket_size=1)
    assert "CUDA ranks" in caught.value.todo


def test_an_unknown_graph_is_refused_with_its_id(handle):
    for call in (
        lambda: handle.op_allgather_param(None, 77, 0),
        lambda: handle.op_prefetch_params_fused(77, [], [0]),
        lambda: handle.op_wait_allgather(None, 77, 0),
        lambda: handle.op_release_param(None, 77, 0, 1),
        lambda: handle.op_reduce_grad(torch.zeros(4), 77, 0),
        lambda: handle.op_end_backward([None], 77),
    ):
        with pytest.raises(RuntimeContractError, match="graph with id 77 ran that was never registered"):
            call()


@pytest.mark.parametrize("ended", [False, True], ids=["beside the first", "after the first ended"])
def test_a_second_engine_in_one_process_is_refused(handle, solo, ended):
    if ended:
        handle.cleanup()
    before = dict(handle.registry.params), dict(handle.executors), handle.group
    with pytest.raises(DskitError, match="second DeepCompile engine") as caught:
        handle.init(solo, config(), reduce_bucket_size=7)
    assert "fresh ranks" in caught.value.todo
    assert (dict(handle.registry.params), dict(handle.executors), handle.group) == before
    assert handle.bucket_size == 100


def test_an_engine_that_was_refused_does_not_count(solo):
    handle = CpuHandle()
    with pytest.raises(DskitError, match="symmetric_memory"):
        handle.init(solo, SimpleNamespace(symmetric_memory=True), reduce_bucket_size=1)
    handle.init(solo, config(), reduce_bucket_size=1)


def test_a_new_graph_takes_the_bucket_size_of_the_engine(handle):
    assert handle.executors[GRAPH].bucket.capacity == 100


def test_set_persistent_gathers_now_and_keeps(handle):
    handle.set_persistent(0)
    weight = handle.registry[0]
    assert weight.persistent and weight.valid and weight.pending is None
    assert weight.view(torch.float32).tolist() == [[0, 1], [2, 3]]
    handle.op_release_param(torch.empty(0), GRAPH, 0, 1)
    handle.invalidate_gathered_param(0)
    handle.clear_all_gathered_params()
    assert gathered(handle) == [0]


def test_gathered_parameters_are_let_go_one_or_all(handle):
    for ds_id in (0, 1):
        handle.op_allgather_param(torch.empty(0), GRAPH, ds_id)
    handle.invalidate_gathered_param(0)
    assert gathered(handle) == [1]
    handle.op_allgather_param(torch.empty(0), GRAPH, 0)
    handle.clear_all_gathered_params()
    assert gathered(handle) == []


def test_start_backward_tells_every_graph_whether_a_step_follows(handle):
    handle.register_graph_z3(GRAPH + 1, [0])
    for follows in (True, False):
        handle.start_backward(follows)
        assert [e.step_follows for e in handle.executors.values()] == [follows] * 2


def test_profiling_reduces_nothing(handle):
    assert not handle.is_profiling()
    handle.enable_profiling(True)
    assert handle.is_profiling()
    handle.op_reduce_grad(torch.ones(2, 2), GRAPH, 0)
    handle.op_end_backward([None], GRAPH)
    assert not handle.registry[0].grad_buffer.any()
    handle.enable_profiling(False)
    handle.op_reduce_grad(torch.ones(2, 2), GRAPH, 0)
    handle.op_end_backward([None], GRAPH)
    assert handle.registry[0].grad_buffer.tolist() == [1.0] * 4


def test_only_the_profiler_may_release_what_it_let_go_itself(handle):
    value = torch.empty(0)
    handle.enable_profiling(True)
    handle.op_allgather_param(value, GRAPH, 0)
    handle.invalidate_gathered_param(0)
    assert handle.op_release_param(value, GRAPH, 0, 1) is value
    handle.enable_profiling(False)
    with pytest.raises(RuntimeContractError, match=r"release layer\.weight"):
        handle.op_release_param(value, GRAPH, 0, 1)


def test_free_tensors_empties_what_is_over_the_threshold(handle):
    small, large = torch.ones(10), torch.ones(11)
    handle.enable_profiling(True)
    handle.op_free_tensors([small, large])
    assert large.numel() == 11, "nothing is freed while profiling"
    handle.enable_profiling(False)
    handle.op_free_tensors([small, large])
    assert (small.numel(), large.numel()) == (10, 0)


def test_a_reduced_gradient_leaves_an_empty_tensor_of_its_dtype(handle):
    for reduce in (handle.op_reduce_grad, handle.meta_reduce_grad):
        left = reduce(torch.ones(2, 2, dtype=torch.bfloat16), GRAPH, 0)
        assert left.shape == (0,) and left.dtype is torch.bfloat16


def test_reset_forgets_graphs_and_keeps_parameters(handle):
    handle.reset()
    assert not handle.executors
    assert list(handle.registry.params) == [0, 1]


def test_cleanup_lets_go_of_graphs_buffers_and_the_group(handle):
    handle.set_persistent(0)
    handle.cleanup()
    assert not handle.executors and handle.group is None
    assert gathered(handle) == []


def test_an_operator_that_is_not_served_says_so_by_name():
    with pytest.raises(DskitError, match="dc::offload_tensor") as caught:
        operators._unserved("offload_tensor")(1, key=2)
    assert "does not serve" in caught.value.found
