"""Loss curves of two runs that must agree, and by how much they differ."""

import matplotlib.pyplot as plt
import numpy as np

from dskit.plots.style import NEUTRAL, SERIES, figure_style


def plot_losses_and_difference(
    baseline: list[dict], run: list[dict], names: tuple[str, str], warmup: int = 5
):
    """Overlay the losses of two runs and draw their difference below.

    Args:
        baseline: rows from ``dskit.experiments.training.train``, of all ranks.
        run: the same, of the run that is compared.
        names: what the legend calls them, the baseline first.
        warmup: the step at which DeepCompile compiles again, marked in the figure.

    Returns:
        The figure: mean loss over the ranks by step, and the largest difference over the ranks.
    """
    with figure_style():
        figure, (above, below) = plt.subplots(
            2, 1, sharex=True, figsize=(8, 5.5), height_ratios=(3, 2)
        )  # fmt: skip
        a, b = _by_rank_and_step(baseline), _by_rank_and_step(run)
        steps = np.arange(a.shape[1])
        above.plot(steps, a.mean(axis=0), color=SERIES[0], linewidth=6, alpha=0.45, label=names[0])
        above.plot(steps, b.mean(axis=0), color="black", marker="o", markersize=4, label=names[1])
        below.plot(steps, np.abs(a - b).max(axis=0), color="black", marker="o", markersize=4)
        for axes in (above, below):
            axes.axvline(warmup - 0.5, color=NEUTRAL, linestyle="--", linewidth=1)
        above.annotate("prefetch and selective gather from here", (warmup - 0.5, 1), xytext=(4, -4),
                       xycoords=("data", "axes fraction"), textcoords="offset points",
                       va="top", fontsize=10, color=NEUTRAL)  # fmt: skip
        above.set(title="Loss", ylabel="mean squared error")
        above.legend(loc="lower left")
        below.set(title="Largest difference on any rank", ylabel="|difference|", xlabel="step")
        below.set_xticks(steps)
        if np.abs(a - b).any():
            below.set_ylim(bottom=0)
        else:
            below.set_ylim(-1, 1)
            below.set_yticks([0])
            below.annotate("equal to the last bit", (0.5, 0.62), xycoords="axes fraction", ha="center")
    return figure


def largest_difference(baseline: list[dict], run: list[dict]) -> float:
    """The largest difference between two runs' losses, over all ranks and steps."""
    return float(np.abs(_by_rank_and_step(baseline) - _by_rank_and_step(run)).max())


def _by_rank_and_step(rows: list[dict]) -> np.ndarray:
    ranks, steps = max(r["rank"] for r in rows) + 1, max(r["step"] for r in rows) + 1
    losses = np.full((ranks, steps), np.nan)
    for row in rows:
        losses[row["rank"], row["step"]] = row["loss"]
    return losses
