"""Loss curves of two runs that must agree, and by how much they differ."""

import matplotlib.pyplot as plt
import numpy as np
from matplotlib.ticker import MaxNLocator

from dskit.errors import DskitError
from dskit.plots.style import NEUTRAL, SERIES, figure_style


def plot_losses_and_difference(
    baseline: list[dict], run: list[dict], names: tuple[str, str], warmup: int = 5
):
    """Overlay the losses of two runs and draw their difference below.

    Args:
        baseline: rows from ``dskit.experiments.training.train``, of all ranks.
        run: the same, of the run that is compared.
        names: what the legend calls them, the baseline first.
        warmup: the step at which DeepCompile compiles again, marked where the run gets there.

    Returns:
        The figure: mean loss over the ranks by step, and the largest difference over the ranks.

    Raises:
        DskitError: the runs do not have the same ranks and steps.
    """
    a, b = _aligned(baseline, run)
    with figure_style():
        figure, (above, below) = plt.subplots(2, 1, sharex=True, figsize=(8, 5.5), height_ratios=(3, 2))
        steps = np.arange(a.shape[1])
        above.plot(steps, a.mean(axis=0), color=SERIES[0], linewidth=6, alpha=0.45, label=names[0])
        above.plot(steps, b.mean(axis=0), color="black", marker="o", markersize=4, label=names[1])
        below.plot(steps, np.abs(a - b).max(axis=0), color="black", marker="o", markersize=4)
        if 0 < warmup < len(steps):
            _mark_warmup(above, below, warmup, right_half=warmup > len(steps) / 2)
        above.set(title="Loss", ylabel="mean squared error")
        below.set(title="Largest difference on any rank", ylabel="|difference|", xlabel="step")
        below.xaxis.set_major_locator(MaxNLocator(12, integer=True, min_n_ticks=1))
        below.yaxis.set_major_formatter("{x:.3g}")  # 5e-08 at the tick, no factor beside the title
        if np.abs(a - b).any():
            below.set_ylim(bottom=0)
        else:
            below.set_ylim(-1, 1)
            below.set_yticks([0])
            below.annotate("equal to the last bit", (0.5, 0.62), xycoords="axes fraction", ha="center",
                           bbox={"facecolor": "white", "edgecolor": "none", "pad": 2})  # fmt: skip
        figure.legend(loc="outside upper right", ncols=2)
    return figure


def _mark_warmup(above, below, warmup: int, right_half: bool) -> None:
    for axes in (above, below):
        axes.axvline(warmup - 0.5, color=NEUTRAL, linestyle="--", linewidth=1)
    above.annotate("prefetch and selective gather from here", (warmup - 0.5, 1),
                   xytext=(-4 if right_half else 4, -4), ha="right" if right_half else "left",
                   xycoords=("data", "axes fraction"), textcoords="offset points",
                   va="top", fontsize=10, color=NEUTRAL)  # fmt: skip


def largest_difference(baseline: list[dict], run: list[dict]) -> float:
    """The largest difference between two runs' losses, over all ranks and steps; NaN if a loss is NaN.

    Raises:
        DskitError: the runs do not have the same ranks and steps.
    """
    a, b = _aligned(baseline, run)
    return float(np.abs(a - b).max())


def _aligned(baseline: list[dict], run: list[dict]) -> tuple[np.ndarray, np.ndarray]:
    """The losses of both runs, each of shape (ranks, steps)."""
    places = [sorted({(row["rank"], row["step"]) for row in rows}) for rows in (baseline, run)]
    if not places[0] or places[0] != places[1]:
        raise DskitError(
            "The two runs cannot be compared: they do not have the same ranks and steps.",
            f"The baseline has {_extent(places[0])}, the other run {_extent(places[1])}.",
            "Give the rows of all ranks, of two runs with as many steps.",
        )
    return _by_rank_and_step(baseline), _by_rank_and_step(run)


def _extent(places: list[tuple[int, int]]) -> str:
    ranks, steps = len({rank for rank, _ in places}), len({step for _, step in places})
    return f"{len(places)} rows ({ranks} ranks, {steps} steps)"


def _by_rank_and_step(rows: list[dict]) -> np.ndarray:
    ranks, steps = max(r["rank"] for r in rows) + 1, max(r["step"] for r in rows) + 1
    losses = np.full((ranks, steps), np.nan)
    for row in rows:
        losses[row["rank"], row["step"]] = row["loss"]
    return losses
