"""DeepSpeed's fused Adam on PyTorch's kernel, against PyTorch's own optimizers."""

import pytest
import torch

from dskit.cpu.adam import FusedAdamOnTorch
from dskit.errors import DskitError

SHAPES = ((4, 3), (5,), (1,), (2, 2, 2))
HYPERPARAMETERS = {"lr": 0.02, "eps": 1e-6, "weight_decay": 0.1}
BETAS = (0.8, 0.95)


def start():
    generator = torch.Generator().manual_seed(0)
    return [torch.randn(shape, generator=generator) for shape in SHAPES]


def gradients(step):
    generator = torch.Generator().manual_seed(step)
    return [torch.randn(shape, generator=generator) for shape in SHAPES]


def step(params, grads, first, second, number, *, decoupled=1, bias_correction=1):
    FusedAdamOnTorch().load().multi_tensor_adam(
        2048, None, [grads, params, first, second], HYPERPARAMETERS["lr"], *BETAS, HYPERPARAMETERS["eps"],
        number, decoupled, bias_correction, HYPERPARAMETERS["weight_decay"],
    )  # fmt: skip


@pytest.mark.parametrize(
    ("optimizer", "decoupled"), [(torch.optim.Adam, 0), (torch.optim.AdamW, 1)], ids=["Adam", "AdamW"]
)
@pytest.mark.parametrize("fused", [True, False], ids=["fused", "plain"])
def test_six_steps_are_those_of_pytorchs_optimizer(optimizer, decoupled, fused):
    params, expected = start(), [torch.nn.Parameter(p) for p in start()]
    first, second = ([torch.zeros(shape) for shape in SHAPES] for _ in range(2))
    reference = optimizer(expected, betas=BETAS, fused=fused, foreach=False, **HYPERPARAMETERS)
    for number in range(1, 7):
        for p, grad in zip(expected, gradients(number), strict=True):
            p.grad = grad
        reference.step()
        step(params, gradients(number), first, second, number, decoupled=decoupled)
    # The same kernel gives the same bits; the plain one rounds in another order.
    tolerance = {"rtol": 0, "atol": 0} if fused else {"rtol": 1e-5, "atol": 1e-6}
    for ours, theirs in zip(params, expected, strict=True):
        torch.testing.assert_close(ours, theirs.data, **tolerance)
    for p, m, v in zip(expected, first, second, strict=True):
        torch.testing.assert_close(m, reference.state[p]["exp_avg"], **tolerance)
        torch.testing.assert_close(v, reference.state[p]["exp_avg_sq"], **tolerance)


def test_the_two_kinds_of_weight_decay_differ():
    results = []
    for decoupled in (0, 1):
        params = start()
        moments = [[torch.zeros(shape) for shape in SHAPES] for _ in range(2)]
        step(params, gradients(1), *moments, 1, decoupled=decoupled)
        results.append(params[0])
    assert not torch.allclose(*results)


def test_parameters_that_require_gradients_are_updated_in_place():
    params = [torch.nn.Parameter(p) for p in start()]
    moments = [[torch.zeros(shape) for shape in SHAPES] for _ in range(2)]
    step(params, gradients(1), *moments, 1)
    assert all(not torch.equal(p, before) for p, before in zip(params, start(), strict=True))


def test_adam_without_bias_correction_is_refused_before_anything_changes():
    params = start()
    moments = [[torch.zeros(shape) for shape in SHAPES] for _ in range(2)]
    with pytest.raises(DskitError, match="optimizer's configuration") as caught:
        step(params, gradients(1), *moments, 1, bias_correction=0)
    assert '"bias_correction": false' in caught.value.found
    assert all(torch.equal(p, before) for p, before in zip(params, start(), strict=True))
