"""The book of parameters: what one parameter knows about itself, and look-ups that must fail."""

import pytest
import torch

from dskit.cpu.handle import CpuHandle, param_name
from dskit.cpu.registry import ParamRegistry, RegisteredParam, RuntimeContractError
from dskit.errors import DskitError


def param(ds_id=3, shape=(2, 3), grad=6):
    return RegisteredParam(ds_id, shape, torch.zeros(6), torch.ones(grad), False, None)


def test_registering_clears_the_gradient_partition():
    registry, weight = ParamRegistry(str), param()
    registry.register(weight)
    assert registry[3] is weight
    assert not weight.grad_buffer.any()


@pytest.mark.parametrize(("shape", "numel"), [((2, 3), 6), ((7,), 7), ((), 1), ((0, 4), 0)])
def test_numel_is_of_the_whole_parameter(shape, numel):
    assert param(shape=shape).numel == numel


def test_an_unknown_id_is_refused_with_the_known_ones():
    registry = ParamRegistry(str)
    for ds_id in (5, 2):
        registry.register(param(ds_id))
    with pytest.raises(RuntimeContractError, match=r"ds_id 9, which was never registered") as caught:
        registry[9]
    assert "2 parameters: ds_ids [2, 5]" in str(caught.value)
    assert isinstance(caught.value, DskitError) and isinstance(caught.value, RuntimeError)


def test_a_parameter_is_described_by_name_and_id():
    assert ParamRegistry({3: "layer.weight"}.get).describe(3) == "layer.weight (ds_id 3)"


def test_the_view_is_cut_to_the_true_size_and_cast():
    weight = param(shape=(5,))
    weight.gathered = torch.arange(6.0)
    assert weight.view(torch.float32).tolist() == [0, 1, 2, 3, 4]
    assert weight.view(torch.bfloat16).dtype is torch.bfloat16
    assert weight.view(torch.float32).data_ptr() == weight.gathered.data_ptr(), "a view, not a copy"


def test_a_cast_waits_for_the_gather_and_a_plain_view_does_not():
    class Work:
        waited = 0

        def wait(self):
            self.waited += 1

    weight, work = param(shape=(6,)), Work()
    weight.gathered, weight.pending = torch.zeros(6), work
    weight.view(torch.float32)
    assert work.waited == 0 and weight.pending is work
    weight.view(torch.bfloat16)
    assert work.waited == 1 and weight.pending is None
    weight.wait()
    assert work.waited == 1


def test_dropping_waits_and_forgets():
    class Work:
        waited = 0

        def wait(self):
            self.waited += 1

    weight, work = param(), Work()
    weight.gathered, weight.valid, weight.pending = torch.zeros(6), True, work
    weight.drop()
    assert (work.waited, weight.gathered, weight.valid, weight.pending) == (1, None, False, None)


def test_names_come_from_what_deepspeed_recorded(monkeypatch):
    from deepspeed.utils import debug

    weight = torch.nn.Parameter(torch.zeros(1))
    weight.ds_id = 4
    monkeypatch.setattr(debug, "param_names", {weight: "block.weight", torch.zeros(1): "no id"})
    assert param_name(4) == "block.weight"
    assert param_name(5) == "unnamed parameter"
    assert CpuHandle().registry.describe(4) == "block.weight (ds_id 4)"
