"""The course's run without DeepSpeed: settings, data, model, configuration and the rows that it leaves."""

import itertools
import sys
from dataclasses import asdict
from types import SimpleNamespace

import pytest
import torch

from dskit.errors import DskitError
from dskit.experiments import training
from dskit.experiments.training import (
    BATCH_SIZE,
    DTYPES,
    MODES,
    HalfFrozenNet,
    RunSettings,
    batch,
    deepspeed_config,
    make_engine,
    same_bits,
    shards,
    train,
)

REFUSED = [
    ("mode", "zero2"), ("mode", ""), ("backend", "aot"), ("dtype", "float32"), ("dtype", None),
    ("steps", 0), ("steps", -1), ("steps", 2.5), ("steps", "10"), ("steps", True), ("steps", None),
    ("dim", 0), ("dim", 64.0), ("seed", -1), ("seed", 0.5),
    ("learning_rate", -0.1), ("learning_rate", float("nan")), ("learning_rate", float("inf")),
    ("learning_rate", "1e-2"), ("learning_rate", False),
]  # fmt: skip


@pytest.mark.parametrize(
    ("mode", "backend", "dtype"), list(itertools.product(MODES, ("eager", "inductor"), DTYPES))
)
def test_every_combination_of_choices_is_taken(mode, backend, dtype):
    settings = RunSettings(mode=mode, backend=backend, dtype=dtype)
    assert (settings.mode, settings.backend, settings.dtype) == (mode, backend, dtype)


@pytest.mark.parametrize(("what", "value"), REFUSED, ids=repr)
def test_a_bad_setting_is_refused_with_its_name_and_value(what, value):
    with pytest.raises(DskitError, match="The run was not started") as caught:
        RunSettings(**{"mode": "zero3", what: value})
    assert what in caught.value.happened
    assert caught.value.found == f"{what} is {value!r}."


def test_a_bad_choice_is_answered_with_the_good_ones():
    with pytest.raises(DskitError) as caught:
        RunSettings(mode="zero2")
    assert caught.value.todo == "Choose one of zero0, zero3, deepcompile."


@pytest.mark.parametrize(("what", "value"), [("steps", 1), ("dim", 1), ("seed", 0), ("learning_rate", 0)])
def test_the_smallest_values_are_taken(what, value):
    assert getattr(RunSettings(**{"mode": "zero3", what: value}), what) == value


def test_settings_cannot_change_during_a_run():
    with pytest.raises(AttributeError):
        RunSettings(mode="zero3").steps = 20


# ---- data -------------------------------------------------------------------------------------------------


def test_a_batch_is_the_same_each_time_and_in_every_mode():
    for mode, backend in (("zero0", "eager"), ("deepcompile", "inductor")):
        torch.rand(3)  # the state of the global generator does not matter
        drawn = batch(RunSettings(mode=mode, backend=backend), rank=1, step=4, device="cpu")
        expected = batch(RunSettings(mode="zero3"), rank=1, step=4, device="cpu")
        assert all(torch.equal(a, b) for a, b in zip(drawn, expected, strict=True))


def test_a_batch_leaves_the_global_generator_alone():
    before = torch.get_rng_state()
    batch(RunSettings(mode="zero3"), rank=0, step=0, device="cpu")
    assert torch.equal(torch.get_rng_state(), before)


def test_batches_differ_by_seed_rank_and_step():
    drawn = [
        batch(RunSettings(mode="zero3", seed=seed, dim=4), rank, step, "cpu")[0]
        for seed, rank, step in itertools.product(range(2), range(4), range(20))
    ]
    assert len({tuple(inputs.flatten().tolist()) for inputs in drawn}) == len(drawn)


@pytest.mark.parametrize("dtype", DTYPES)
def test_a_batch_has_the_shape_and_dtype_of_the_run(dtype):
    settings = RunSettings(mode="zero3", dtype=dtype, dim=16)
    for tensor in batch(settings, 0, 0, "cpu"):
        assert tensor.shape == (BATCH_SIZE, 16) and tensor.dtype is DTYPES[dtype]
        assert tensor.isfinite().all()


# ---- model and configuration ------------------------------------------------------------------------------


def test_the_first_layer_is_frozen_and_the_second_trains():
    model = HalfFrozenNet(4)
    assert [(name, p.requires_grad) for name, p in model.named_parameters()] == [
        ("frozen.weight", False),
        ("frozen.bias", False),
        ("trainable.weight", True),
        ("trainable.bias", True),
    ]
    inputs, targets = torch.randn(3, 4), torch.randn(3, 4)
    loss = model(inputs, targets)
    torch.testing.assert_close(loss, (model.trainable(model.frozen(inputs)) - targets).square().mean())
    loss.backward()
    assert [p.grad is not None for p in model.parameters()] == [False, False, True, True]


@pytest.mark.parametrize(
    ("mode", "stage", "compiled"), [("zero0", 0, False), ("zero3", 3, False), ("deepcompile", 3, True)]
)
def test_the_configuration_follows_the_mode(mode, stage, compiled):
    config = deepspeed_config(RunSettings(mode=mode, learning_rate=0.5))
    assert config["zero_optimization"] == {"stage": stage}
    assert config["compile"] == {"deepcompile": compiled}
    assert config["optimizer"]["params"]["lr"] == 0.5
    assert config["train_micro_batch_size_per_gpu"] == BATCH_SIZE


@pytest.mark.parametrize("dtype", DTYPES)
def test_the_configuration_enables_one_half_precision_at_most(dtype):
    config = deepspeed_config(RunSettings(mode="zero3", dtype=dtype))
    assert {key for key in ("fp16", "bf16") if key in config} == {dtype} - {"fp32"}
    assert dtype == "fp32" or config[dtype] == {"enabled": True}


class FakeEngine:
    """The calls that a run makes on a DeepSpeed engine, with plain SGD behind them."""

    device = "cpu"

    def __init__(self, model, model_parameters=None, config=None):
        self.module, self.given, self.config = model, list(model_parameters or []), config
        self.calls = []

    def compile(self, backend):
        self.calls.append(f"compile {backend}")

    def __call__(self, *args):
        self.calls.append("forward")
        return self.module(*args)

    def backward(self, loss):
        self.calls.append("backward")
        loss.backward()

    def step(self):
        self.calls.append("step")
        with torch.no_grad():
            for p in self.module.parameters():
                if p.grad is not None:
                    p -= 0.1 * p.grad
                    p.grad = None


@pytest.fixture
def fake_deepspeed(monkeypatch):
    def initialize(**kwargs):
        return FakeEngine(**kwargs), None, None, None

    monkeypatch.setitem(sys.modules, "deepspeed", SimpleNamespace(initialize=initialize))


@pytest.mark.parametrize("mode", MODES)
def test_an_engine_gets_what_trains_and_is_compiled_where_the_mode_says_so(fake_deepspeed, mode):
    engine = make_engine(RunSettings(mode=mode, backend="inductor", dim=4))
    assert engine.given == list(engine.module.trainable.parameters())
    assert engine.config == deepspeed_config(RunSettings(mode=mode))
    assert engine.calls == (["compile inductor"] if mode == "deepcompile" else [])


def test_engines_of_one_seed_start_from_the_same_weights(fake_deepspeed):
    first, same, other = (
        make_engine(RunSettings(mode=mode, seed=seed, dim=4)).module.state_dict()
        for mode, seed in (("zero0", 1), ("deepcompile", 1), ("zero0", 2))
    )
    assert same_bits(first, same)
    assert not same_bits(first, other)


def test_a_run_leaves_one_row_for_each_step(monkeypatch):
    monkeypatch.setattr(training.torch.distributed, "get_rank", lambda: 1)
    settings = RunSettings(mode="zero0", steps=3, dim=4, seed=5)
    engine = FakeEngine(HalfFrozenNet(4))
    with torch.no_grad():
        inputs = batch(settings, 1, 0, "cpu")
        first_loss = engine.module(*inputs).item()
    rows = train(engine, settings)
    assert engine.calls == ["forward", "backward", "step"] * 3
    assert [(row["rank"], row["step"]) for row in rows] == [(1, 0), (1, 1), (1, 2)]
    assert rows[0]["loss"] == first_loss, "before the update, on this rank's batch"
    assert all(row["seconds"] > 0 for row in rows)
    assert all(row.items() >= asdict(settings).items() for row in rows)


# ---- shards -----------------------------------------------------------------------------------------------


def test_shards_are_copies_of_the_partitions_or_of_whole_parameters():
    model = HalfFrozenNet(2)
    model.frozen.weight.ds_tensor = torch.tensor([1.0, 2.0])
    engine = SimpleNamespace(module=model)
    frozen, trainable = shards(engine, frozen=True), shards(engine, frozen=False)
    assert list(frozen) == ["frozen.weight", "frozen.bias"]
    assert list(trainable) == ["trainable.weight", "trainable.bias"]
    assert frozen["frozen.weight"].tolist() == [1, 2]
    assert torch.equal(trainable["trainable.weight"], model.trainable.weight)
    with torch.no_grad():
        model.trainable.weight.add_(1)
    assert not torch.equal(trainable["trainable.weight"], model.trainable.weight)
    assert not trainable["trainable.weight"].requires_grad


def test_same_bits_sees_a_changed_bit_a_missing_name_and_a_nan():
    a = {"x": torch.ones(3), "y": torch.zeros(2)}
    assert same_bits(a, {name: t.clone() for name, t in a.items()})
    assert not same_bits(a, a | {"x": torch.tensor([1.0, 1.0, 1.0 + 2**-23])})
    assert not same_bits(a, {"x": a["x"]})
    assert not same_bits(a, a | {"y": torch.zeros(3)})
