"""The course's model and its training run, in three modes that must give the same losses.

Everything here runs inside a rank; nothing here knows about notebooks.
"""

import math
import time
from dataclasses import asdict, dataclass

import torch

from dskit.errors import DskitError

MODES = {
    "zero0": "ZeRO-0, eager: the baseline, nothing is sharded",
    # Not a baseline on CPU ranks: DeepSpeed 0.19.5 lets its reductions run on there without waiting for
    # them, and of 14 runs of ten steps up to 8 had other losses than the rest.
    "zero3": "ZeRO-3, eager: parameters are sharded and gathered by module hooks",
    "deepcompile": "ZeRO-3 with DeepCompile: gathers and releases are part of the compiled graphs",
}
DTYPES = {"fp32": torch.float32, "bf16": torch.bfloat16, "fp16": torch.float16}
BATCH_SIZE = 8  # samples for each rank and step


@dataclass(frozen=True)
class RunSettings:
    """What a run is made of.

    Attributes:
        mode: one of ``MODES``.
        backend: "eager" or "inductor"; of use in mode "deepcompile" alone.
        dtype: one of ``DTYPES``.
        steps: optimizer steps.
        seed: of the weights and the data; each rank draws other data.
        dim: width of the model.
        learning_rate: of Adam.

    Raises:
        DskitError: a value that no run can use; the message names it.
    """

    mode: str
    backend: str = "eager"
    dtype: str = "fp32"
    steps: int = 10
    seed: int = 0
    dim: int = 128
    learning_rate: float = 1e-2

    def __post_init__(self):
        for what, value, choices in (
            ("mode", self.mode, MODES),
            ("dtype", self.dtype, DTYPES),
            ("backend", self.backend, ("eager", "inductor")),
        ):
            if value not in choices:
                raise DskitError(
                    f"The run was not started: unknown {what}.",
                    f"{what} is {value!r}.",
                    f"Choose one of {', '.join(choices)}.",
                )
        for what, value, least in (("steps", self.steps, 1), ("seed", self.seed, 0), ("dim", self.dim, 1)):
            if isinstance(value, bool) or not isinstance(value, int) or value < least:
                raise DskitError(
                    f"The run was not started: {what} must be a whole number from {least} on.",
                    f"{what} is {value!r}.",
                )
        rate = self.learning_rate
        if isinstance(rate, bool) or not isinstance(rate, (int, float)) or not 0 <= rate < math.inf:
            raise DskitError(
                "The run was not started: learning_rate must be a number from 0 on.",
                f"learning_rate is {rate!r}.",
            )


class HalfFrozenNet(torch.nn.Module):
    """The model of the report: a frozen linear layer, then a trainable one.

    ``forward`` takes inputs and targets of shape (batch, dim) and gives the mean squared error, a scalar.
    """

    def __init__(self, dim: int = 128):
        super().__init__()
        self.frozen = torch.nn.Linear(dim, dim)
        self.trainable = torch.nn.Linear(dim, dim)
        self.frozen.requires_grad_(False)

    def forward(self, inputs: torch.Tensor, targets: torch.Tensor) -> torch.Tensor:
        return torch.nn.functional.mse_loss(self.trainable(self.frozen(inputs)), targets)


def deepspeed_config(settings: RunSettings) -> dict:
    """DeepSpeed's configuration for a run."""
    config = {
        "train_micro_batch_size_per_gpu": BATCH_SIZE,
        "optimizer": {"type": "Adam", "params": {"lr": settings.learning_rate}},
        "zero_optimization": {"stage": 0 if settings.mode == "zero0" else 3},
        "compile": {"deepcompile": settings.mode == "deepcompile"},
    }
    if settings.dtype != "fp32":
        config[settings.dtype] = {"enabled": True}
    return config


def make_engine(settings: RunSettings):
    """A DeepSpeed engine for the run, compiled where the mode says so.

    Raises:
        KeyError: DeepSpeed's, in mode "deepcompile" without the guard.
    """
    import deepspeed

    torch.manual_seed(settings.seed)
    model = HalfFrozenNet(settings.dim)
    trainable = [p for p in model.parameters() if p.requires_grad]
    engine, *_ = deepspeed.initialize(
        model=model, model_parameters=trainable, config=deepspeed_config(settings)
    )
    if settings.mode == "deepcompile":
        engine.compile(backend=settings.backend)
    return engine


def batch(settings: RunSettings, rank: int, step: int, device) -> tuple[torch.Tensor, torch.Tensor]:
    """Inputs and targets of one step on one rank, each of shape (BATCH_SIZE, dim)."""
    generator = torch.Generator().manual_seed(settings.seed * 1_000_003 + step * 1_009 + rank)
    inputs = torch.randn(BATCH_SIZE, settings.dim, generator=generator)
    targets = torch.roll(inputs, 1, dims=1).sin()  # something that a linear layer can partly learn
    dtype = DTYPES[settings.dtype]
    return inputs.to(device, dtype), targets.to(device, dtype)


def train(engine, settings: RunSettings) -> list[dict]:
    """Train for ``settings.steps`` steps.

    Returns:
        One row for each step: rank, step, loss (on this rank's batch, before the update), seconds, and
        the settings.
    """
    rank = torch.distributed.get_rank()
    rows = []
    for step in range(settings.steps):
        inputs, targets = batch(settings, rank, step, engine.device)
        began = time.perf_counter()
        loss = engine(inputs, targets)
        engine.backward(loss)
        engine.step()
        value = loss.item()
        seconds = time.perf_counter() - began
        rows.append({"rank": rank, "step": step, "loss": value, "seconds": seconds, **asdict(settings)})
    return rows


def shards(engine, frozen: bool) -> dict[str, torch.Tensor]:
    """Copies of this rank's parameter shards (whole parameters where nothing is sharded), by name.

    Args:
        engine: a DeepSpeed engine.
        frozen: take the frozen parameters, or else the trainable ones.
    """
    chosen = (item for item in engine.module.named_parameters() if item[1].requires_grad is not frozen)
    return {name: getattr(p, "ds_tensor", p).detach().clone() for name, p in chosen}


def same_bits(before: dict[str, torch.Tensor], after: dict[str, torch.Tensor]) -> bool:
    """Whether two sets of tensors are equal to the last bit."""
    return before.keys() == after.keys() and all(torch.equal(before[name], after[name]) for name in before)
