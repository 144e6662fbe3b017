"""DeepSpeed's CPU accelerator with events and a random fork, and what is adapted in DeepSpeed's modules."""

import operator

import pytest
import torch

from dskit.cpu import adapt
from dskit.cpu.adam import FusedAdamOnTorch


@pytest.fixture(scope="module")
def accelerator():
    from dskit.cpu.accelerator import DeepCompileCpuAccelerator

    return DeepCompileCpuAccelerator()


def test_the_current_device_is_one_that_pytorch_takes(accelerator):
    assert torch.device(accelerator.current_device()) == torch.device("cpu")
    assert accelerator.device_name() == "cpu"


def test_an_event_measures_in_milliseconds(accelerator, monkeypatch):
    from dskit.cpu import accelerator as module

    clock = iter([10.0, 10.25])
    monkeypatch.setattr(module.time, "perf_counter", lambda: next(clock))
    start, end = (accelerator.Event(enable_timing=True) for _ in range(2))
    start.record()
    end.record(stream=None)
    assert start.elapsed_time(end) == 250


def test_an_event_on_the_host_is_always_done(accelerator):
    event = accelerator.Event()
    event.record()
    event.synchronize()
    event.wait()
    assert event.query() is True


@pytest.mark.parametrize("devices", [["cpu"], [torch.device("cpu")], [], None], ids=str)
def test_a_random_fork_takes_a_cpu_device_and_restores_the_state(accelerator, devices):
    torch.manual_seed(3)
    before = torch.get_rng_state()
    with accelerator.random().fork_rng(devices=devices):
        torch.rand(5)
        assert not torch.equal(torch.get_rng_state(), before)
    assert torch.equal(torch.get_rng_state(), before)


def test_a_random_fork_that_is_switched_off_restores_nothing(accelerator):
    before = torch.get_rng_state()
    with accelerator.random().fork_rng(devices=["cpu"], enabled=False):
        torch.rand(5)
    assert not torch.equal(torch.get_rng_state(), before)


def test_the_rest_of_the_random_module_is_pytorchs(accelerator):
    assert accelerator.random().manual_seed is torch.random.manual_seed


def test_no_collectives_are_compiled_when_a_group_is_made(accelerator):
    assert accelerator.create_op_builder("ShareMemCommBuilder") is None
    assert accelerator.create_op_builder("FusedAdamBuilder") is not None


def test_support_is_declared_where_deepspeed_asks(monkeypatch):
    from deepspeed.compile import util
    from deepspeed.runtime import engine

    for module in (util, engine):
        monkeypatch.setattr(module, "is_deepcompile_supported", lambda: False)
    monkeypatch.setattr(util, "sym_size_ops", None, raising=False)
    monkeypatch.delattr(util, "sym_size_ops")
    adapt.declare_support()
    assert util.is_deepcompile_supported() and engine.is_deepcompile_supported()
    assert {operator.getitem, operator.ge, torch.ops.aten.sym_size.int} <= util.sym_size_ops


def test_passes_run_with_the_python_dispatcher_off(monkeypatch):
    from deepspeed.compile import backend

    key, seen = torch._C.DispatchKey.PythonDispatcher, []

    def run_opt_passes(*args, **kwargs):
        seen.append((args, kwargs, torch._C._dispatch_tls_is_dispatch_key_included(key)))
        return "result"

    monkeypatch.setattr(backend, "run_opt_passes", run_opt_passes)
    adapt.run_passes_without_python_dispatcher()
    with torch._C._EnablePythonDispatcher():
        assert backend.run_opt_passes(1, gm=2) == "result"
        assert torch._C._dispatch_tls_is_dispatch_key_included(key), "on again afterwards"
    assert seen == [((1,), {"gm": 2}, False)]
    assert backend.run_opt_passes.__wrapped__ is run_opt_passes


@pytest.mark.parametrize(("asked", "measured"), [(31, adapt.MAX_GATHER_LOG2), (8, 8)])
def test_the_gather_profile_is_cut_short_and_runs_on_real_tensors(monkeypatch, asked, measured):
    from deepspeed.compile.profilers import comm_profile
    from torch._subclasses.fake_tensor import FakeTensor, FakeTensorMode

    seen = []

    def run_all_gather(device, dtype, maxsize, warmup=5, trials=10):
        seen.append((maxsize, trials, isinstance(torch.empty(1), FakeTensor)))

    monkeypatch.setattr(comm_profile, "run_all_gather", run_all_gather)
    adapt.limit_gather_profile()
    with FakeTensorMode():
        comm_profile.run_all_gather("cpu", torch.bfloat16, asked, trials=3)
    assert seen == [(measured, 3, False)]


def test_fused_adam_finds_pytorchs_kernel(monkeypatch):
    from deepspeed.ops.adam import fused_adam

    monkeypatch.setattr(fused_adam, "FusedAdamBuilder", None)
    adapt.use_torch_adam()
    weight = torch.nn.Parameter(torch.ones(3))
    optimizer = fused_adam.FusedAdam([weight], lr=0.1)
    assert fused_adam.FusedAdamBuilder is FusedAdamOnTorch
    weight.grad = torch.ones(3)
    optimizer.step()
    torch.testing.assert_close(weight.data, torch.full((3,), 0.9))
