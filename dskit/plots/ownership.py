"""Who owns which parameter: the figure of notebook 02."""

import matplotlib.pyplot as plt
from matplotlib.patches import Patch
from matplotlib.ticker import MaxNLocator

from dskit.plots.style import FROZEN, TRAINABLE, color_of, figure_style, label_width


def plot_ownership(rows: list[dict]):
    """Shard and gradient partition of every parameter, and which of them the gradient map holds.

    Args:
        rows: from ``dskit.experiments.ownership.ownership``.

    Returns:
        The figure: horizontal bars, in elements on this rank.
    """
    labels = [f"{row['name']}  (ds_id {row['ds_id']})" for row in rows]
    size = (label_width(labels) + 7.6, 1.4 + 0.5 * len(rows))
    with figure_style():
        figure, (left, right) = plt.subplots(1, 2, sharey=True, figsize=size)
        places = range(len(rows))
        colors = [color_of(row["trainable"]) for row in rows]
        left.barh(places, [row["shard"] for row in rows], color=colors)
        right.barh(places, [row["gradient"] for row in rows], color=colors)
        for place, row in zip(places, rows, strict=True):
            if not row["owned"]:
                right.annotate("not in the map: KeyError", (0, place), xytext=(6, 0),
                               textcoords="offset points", va="center",
                               color=color_of(row["trainable"]))  # fmt: skip
        left.set_yticks(places, labels)
        left.set_ylim(len(rows) - 0.4, -0.6)
        left.set(title="Parameter shard", xlabel="elements on this rank")
        right.set(title="Gradient partition in the map", xlabel="elements on this rank")
        right.set_xlim(left.get_xlim())
        for axes in (left, right):
            axes.grid(axis="y", visible=False)
            axes.xaxis.set_major_locator(MaxNLocator(5))
            axes.xaxis.set_major_formatter("{x:,.0f}")
        legend = [Patch(color=FROZEN, label="frozen"), Patch(color=TRAINABLE, label="trainable")]
        figure.legend(handles=legend, loc="outside upper right", ncols=2)
    return figure
