"""What a graph does with parameters, on a group of one rank; test_cpu_two_ranks.py has two."""

import pytest
import torch

from dskit.cpu import executor as executor_module
from dskit.cpu.executor import GraphExecutor, ReduceBucket, ReduceTask
from dskit.cpu.registry import ParamRegistry, RegisteredParam, RuntimeContractError

NAMES = {0: "frozen.weight", 1: "layer.weight", 2: "layer.bias", 7: "elsewhere.weight"}


@pytest.fixture
def registry():
    """Parameter 0 is frozen (its gradient partition is empty), 1 and 2 train, 7 is in no graph."""
    registry = ParamRegistry(NAMES.get)
    for ds_id, shape in ((0, (2, 2)), (1, (2, 3)), (2, (3,)), (7, (4,))):
        numel = torch.Size(shape).numel()
        shard = torch.randn(numel, generator=torch.Generator().manual_seed(ds_id))
        grads = torch.empty(0 if ds_id == 0 else numel)
        registry.register(RegisteredParam(ds_id, shape, shard, grads, False, None))
    return registry


@pytest.fixture
def graph(registry, solo):
    return GraphExecutor(registry, solo, [0, 1, 2], bucket_size=1000)


@pytest.fixture
def gathers(monkeypatch):
    """Grows by one for each all-gather that is started."""
    started, all_gather = [], executor_module._all_gather

    def counted(output, *args, **kwargs):
        started.append(output.dtype)
        return all_gather(output, *args, **kwargs)

    monkeypatch.setattr(executor_module, "_all_gather", counted)
    return started


# ---- gather, wait, prefetch -------------------------------------------------------------------------------


def test_a_gather_gives_the_parameter_in_its_true_shape(graph, registry):
    weight = graph.gather(1, None)
    graph.wait(1)
    assert weight.shape == (2, 3)
    assert torch.equal(weight.flatten(), registry[1].shard)


def test_a_gather_can_cast(graph, registry, gathers):
    weight = graph.gather(1, torch.bfloat16)
    graph.wait(1)
    assert gathers == [torch.bfloat16], "cast before the collective: half of the bytes"
    assert torch.equal(weight.flatten(), registry[1].shard.bfloat16())


def test_a_gathered_parameter_is_not_gathered_again(graph, gathers):
    first = graph.gather(1, None)
    again = graph.gather(1, None)
    assert len(gathers) == 1
    assert again.data_ptr() == first.data_ptr()


def test_a_gathered_parameter_is_cast_where_another_dtype_is_asked_for(graph, registry, gathers):
    graph.gather(1, None)
    weight = graph.gather(1, torch.bfloat16)
    assert gathers == [torch.float32]
    assert torch.equal(weight.flatten(), registry[1].shard.bfloat16())


def test_a_prefetched_parameter_is_gathered_once(graph, registry, gathers):
    graph.prefetch([0, 1], None)
    assert registry[0].valid and registry[1].valid and not registry[2].valid
    weights = [graph.gather(ds_id, None) for ds_id in (0, 1)]
    assert len(gathers) == 2
    for ds_id, weight in enumerate(weights):
        graph.wait(ds_id)
        assert registry[ds_id].pending is None
        assert torch.equal(weight.flatten(), registry[ds_id].shard)


def test_a_prefetch_casts_each_parameter_as_told(graph, gathers):
    graph.prefetch([0, 1], [torch.bfloat16, torch.float16])
    assert gathers == [torch.bfloat16, torch.float16]
    graph.prefetch([1], [torch.float16])
    assert len(gathers) == 2


def test_waiting_without_a_gather_is_no_error(graph):
    graph.wait(1)


# ---- release ----------------------------------------------------------------------------------------------


def test_a_release_counts_uses_and_drops_after_the_last(graph, registry):
    for _ in range(2):  # the count starts again with the next gather
        graph.gather(1, None)
        for use in (1, 2, 3):
            assert registry[1].gathered is not None, f"dropped before use {use}"
            graph.release(1, 3)
        assert registry[1].gathered is None and not registry[1].valid


def test_after_a_release_the_parameter_is_gathered_anew(graph, registry, gathers):
    graph.gather(1, None)
    graph.release(1, 1)
    registry[1].shard.fill_(5)
    weight = graph.gather(1, None)
    graph.wait(1)
    assert len(gathers) == 2
    assert torch.equal(weight, torch.full((2, 3), 5.0))


def test_what_was_computed_from_a_released_parameter_stays(graph, registry):
    weight = graph.gather(1, None)
    graph.wait(1)
    graph.release(1, 1)
    assert torch.equal(weight.flatten(), registry[1].shard), "the graph's own view keeps the memory"


def test_graphs_count_uses_each_for_itself(graph, registry, solo):
    other = GraphExecutor(registry, solo, [1], bucket_size=1000)
    graph.gather(1, None)
    graph.release(1, 2)
    other.release(1, 2)
    assert registry[1].gathered is not None
    graph.release(1, 2)
    assert registry[1].gathered is None


def test_a_persistent_parameter_is_kept_until_a_step_makes_it_stale(graph, registry, gathers):
    registry[1].persistent = True
    old = registry[1].shard.clone()
    for _ in range(2):
        graph.gather(1, None)
        graph.wait(1)
        graph.release(1, 1)
    graph.end_backward()  # of a micro-batch: no step follows
    registry[1].shard.add_(1)
    weight = graph.gather(1, None)
    assert len(gathers) == 1
    assert torch.equal(weight.flatten(), old)

    graph.step_follows = True
    graph.end_backward()
    weight = graph.gather(1, None)
    graph.wait(1)
    assert len(gathers) == 2
    assert torch.equal(weight.flatten(), old + 1)


# ---- reduce -----------------------------------------------------------------------------------------------


def test_a_gradient_is_in_the_partition_after_the_flush(graph, registry):
    grad = torch.arange(6.0).view(2, 3)
    graph.reduce(grad, 1)
    assert not registry[1].grad_buffer.any(), "it waits in the bucket"
    graph.flush()
    assert torch.equal(registry[1].grad_buffer, grad.flatten())
    assert graph.bucket.numel == 0


def test_the_gradient_itself_is_left_alone(graph):
    grad = torch.ones(2, 3, requires_grad=True)
    graph.reduce(grad, 1)
    graph.flush()
    assert torch.equal(grad, torch.ones(2, 3))
    assert graph.bucket.tasks == []


def test_a_gradient_that_is_not_contiguous_keeps_its_order(graph, registry):
    grad = torch.arange(6.0).view(3, 2).t()
    graph.reduce(grad, 1)
    graph.flush()
    assert registry[1].grad_buffer.tolist() == [0, 2, 4, 1, 3, 5]


def test_gradients_accumulate_over_micro_batches_and_start_again_after_a_step(graph, registry):
    for micro_batch in range(3):
        graph.step_follows = micro_batch == 2
        graph.reduce(torch.ones(3), 2)
        graph.end_backward()
        assert registry[2].grad_buffer.tolist() == [micro_batch + 1.0] * 3
    graph.reduce(torch.ones(3), 2)
    graph.end_backward()
    assert registry[2].grad_buffer.tolist() == [1.0] * 3


def test_two_gradients_of_one_parameter_in_one_backward_are_added(graph, registry):
    graph.reduce(torch.ones(3), 2)
    graph.reduce(torch.ones(3), 2)
    graph.end_backward()
    assert registry[2].grad_buffer.tolist() == [2.0] * 3


@pytest.mark.parametrize(
    ("waiting", "numel", "full"), [([], 11, False), ([6], 4, False), ([6], 5, True), ([6, 4], 1, True)]
)
def test_the_bucket_is_full_when_the_next_gradient_does_not_fit(waiting, numel, full):
    bucket = ReduceBucket(capacity=10)
    bucket.tasks = [ReduceTask(i, torch.zeros(n)) for i, n in enumerate(waiting)]
    assert bucket.numel == sum(waiting)
    assert bucket.is_full_for(numel) is full


def test_a_full_bucket_is_flushed_before_the_next_gradient(registry, solo):
    graph = GraphExecutor(registry, solo, [1, 2], bucket_size=8)
    graph.reduce(torch.ones(2, 3), 1)
    graph.reduce(torch.ones(3), 2)
    assert registry[1].grad_buffer.tolist() == [1.0] * 6
    assert not registry[2].grad_buffer.any()
    assert [task.ds_id for task in graph.bucket.tasks] == [2]
    graph.end_backward()
    assert registry[2].grad_buffer.tolist() == [1.0] * 3


def test_a_gradient_larger_than_the_bucket_is_reduced(registry, solo):
    graph = GraphExecutor(registry, solo, [1], bucket_size=2)
    graph.reduce(torch.ones(2, 3), 1)
    graph.end_backward()
    assert registry[1].grad_buffer.tolist() == [1.0] * 6


@pytest.mark.parametrize(("expected", "reduced"), [(torch.float32, torch.float32), (None, torch.bfloat16)])
def test_a_gradient_is_cast_to_the_expected_dtype(graph, registry, expected, reduced):
    registry[2].grad_dtype = expected
    graph.reduce(torch.tensor([1.0, 2.0, 3.0], dtype=torch.bfloat16), 2)
    assert graph.bucket.tasks[0].send.dtype is reduced
    graph.end_backward()
    assert registry[2].grad_buffer.dtype is torch.float32
    assert registry[2].grad_buffer.tolist() == [1, 2, 3]


def test_accumulation_in_a_wider_partition_rounds_once_for_each_gradient(graph, registry):
    tiny = torch.full((3,), 2.0**-10, dtype=torch.bfloat16)  # 1 + 2**-10 is 1 in bf16
    for grad in (torch.ones(3, dtype=torch.bfloat16), tiny):
        graph.reduce(grad, 2)
        graph.end_backward()
    assert registry[2].grad_buffer.tolist() == [1 + 2.0**-10] * 3


# ---- what is refused --------------------------------------------------------------------------------------

ACTIONS = {
    "gather": lambda graph, ds_id: graph.gather(ds_id, None),
    "prefetch": lambda graph, ds_id: graph.prefetch([1, ds_id], None),
    "wait for": lambda graph, ds_id: graph.wait(ds_id),
    "release": lambda graph, ds_id: graph.release(ds_id, 1),
    "reduce the gradient of": lambda graph, ds_id: graph.reduce(torch.zeros(4), ds_id),
}


@pytest.mark.parametrize("action", ACTIONS)
def test_an_unknown_id_is_refused(graph, action):
    with pytest.raises(RuntimeContractError, match="ds_id 9, which was never registered"):
        ACTIONS[action](graph, 9)


@pytest.mark.parametrize("action", ACTIONS)
def test_a_parameter_of_another_graph_is_refused_by_name(graph, action):
    with pytest.raises(RuntimeContractError) as caught:
        ACTIONS[action](graph, 7)
    assert f"tried to {action} elsewhere.weight (ds_id 7)" in caught.value.happened
    assert "[0, 1, 2]" in caught.value.found


def test_a_reduce_into_an_empty_partition_is_refused_by_name(graph):
    with pytest.raises(RuntimeContractError, match=r"frozen\.weight \(ds_id 0\)") as caught:
        graph.reduce(torch.zeros(2, 2), 0)
    assert "gradient partition is empty" in caught.value.found
    assert graph.bucket.tasks == []


def test_a_gradient_of_the_wrong_size_is_refused_by_name(graph):
    with pytest.raises(RuntimeContractError, match=r"layer\.weight \(ds_id 1\) has the wrong size") as caught:
        graph.reduce(torch.zeros(2, 2), 1)
    assert "The gradient has 4 elements, the parameter 6." in caught.value.found


def test_a_release_without_a_gather_is_refused_by_name(graph):
    with pytest.raises(RuntimeContractError, match=r"release layer\.weight \(ds_id 1\)") as caught:
        graph.release(1, 1)
    assert "not gathered" in caught.value.found


def test_a_second_release_after_the_last_use_is_refused(graph):
    graph.gather(1, None)
    graph.release(1, 1)
    with pytest.raises(RuntimeContractError, match=r"layer\.weight"):
        graph.release(1, 1)
