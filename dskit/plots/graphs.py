"""What DeepCompile put into its graphs for each parameter: the figure of the schedule."""

import matplotlib.pyplot as plt
from matplotlib.lines import Line2D
from matplotlib.patches import Patch
from matplotlib.ticker import MaxNLocator

from dskit.errors import DskitError
from dskit.plots.style import FROZEN, NEUTRAL, TRAINABLE, color_of, figure_style, label_width

_MARKERS = {"gather": "v", "prefetch": "D", "release": "^", "reduce": "*"}


def plot_graph_operations(graphs: list[dict]):
    """Gathers, releases and reduces along the nodes of each graph, a line for each parameter.

    Args:
        graphs: from ``dskit.experiments.graphs.captured_graphs``.

    Returns:
        The figure: one panel for each graph, two in a row, nodes in order of execution.

    Raises:
        DskitError: there is no graph.
    """
    if not graphs:
        raise DskitError(
            "There is no graph to draw.",
            "The list is empty: nothing was compiled while graphs were captured.",
            "Capture from the engine's first step on, in mode deepcompile.",
        )
    names = list(dict.fromkeys(n for g in graphs for row in g["rows"] for n in row["names"]))
    trainable = {
        n: t for g in graphs for row in g["rows"] for n, t in zip(row["names"], row["trainable"], strict=True)
    }
    columns = min(2, len(graphs))
    lines = -(-len(graphs) // columns)
    width = label_width(names) + 4.5 * columns
    with figure_style():
        figure, panels = plt.subplots(
            lines, columns, sharey=True, squeeze=False, figsize=(width, 1 + (1 + 0.45 * len(names)) * lines)
        )
        for axes in panels.flat[len(graphs) :]:
            axes.set_visible(False)
        for axes, graph in zip(panels.flat, graphs, strict=False):
            _draw(axes, graph, names, trainable)
        panels[0][0].set_yticks(range(len(names)), names)
        panels[0][0].set_ylim(len(names) - 0.4, -0.6)
        figure.legend(handles=_legend(graphs), loc="outside lower center", ncols=3 * columns)
    return figure


def _draw(axes, graph: dict, names: list[str], trainable: dict[str, bool]) -> None:
    for place, name in enumerate(names):
        axes.axhline(place, color=color_of(trainable[name]), linewidth=1, alpha=0.3)
    for row in graph["rows"]:
        if row["operation"] in _MARKERS:
            for name in row["names"]:
                axes.plot(row["position"], names.index(name), linestyle="", markersize=11,
                          marker=_MARKERS[row["operation"]], color=color_of(trainable[name]))  # fmt: skip
    axes.set(title=f"{graph['direction'].capitalize()} graph, step {graph['step']}",
             xlabel="node, in order of execution")  # fmt: skip
    axes.set_xlim(-1, len(graph["rows"]))
    axes.xaxis.set_major_locator(MaxNLocator(6, integer=True))
    axes.grid(axis="y", visible=False)


def _legend(graphs: list[dict]) -> list:
    used = {row["operation"] for g in graphs for row in g["rows"]}
    marks = [
        Line2D([], [], linestyle="", marker=marker, markersize=10, color=NEUTRAL, label=operation)
        for operation, marker in _MARKERS.items()
        if operation in used
    ]
    return [Patch(color=FROZEN, label="frozen"), Patch(color=TRAINABLE, label="trainable"), *marks]
