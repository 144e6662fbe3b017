"""The figure of a schedule: gathers, releases and reduces along the nodes of each graph."""

import pytest
from matplotlib.colors import to_hex

from dskit.errors import DskitError
from dskit.plots import plot_graph_operations
from dskit.plots.style import FROZEN, NEUTRAL, TRAINABLE


def marks(axes):
    """Markers as (x, y, marker, colour), without the lines of the parameters."""
    return [
        (line.get_xdata()[0], line.get_ydata()[0], line.get_marker(), to_hex(line.get_color()).upper())
        for line in axes.lines
        if line.get_marker() != "None"
    ]


def test_every_operation_is_marked_at_its_node_and_parameter(graphs):
    forward, backward = plot_graph_operations(graphs).axes
    assert marks(forward) == [
        (1, 0, "D", FROZEN), (1, 1, "D", TRAINABLE), (2, 0, "v", FROZEN), (5, 0, "^", FROZEN),
        (6, 1, "v", TRAINABLE), (9, 1, "^", TRAINABLE),
    ]  # fmt: skip
    assert marks(backward) == [(2, 1, "*", TRAINABLE)]


def test_every_panel_shows_its_whole_graph(graphs):
    for axes, graph in zip(plot_graph_operations(graphs).axes, graphs, strict=True):
        assert axes.get_xlim() == (-1, len(graph["rows"]))
        assert axes.get_title("left") == f"{graph['direction'].capitalize()} graph, step 5"
        assert axes.get_xlabel() == "node, in order of execution"


def test_parameters_have_a_line_each_in_the_order_of_their_first_use(graphs):
    forward, backward = plot_graph_operations(graphs).axes
    assert [label.get_text() for label in forward.get_yticklabels()] == ["frozen.weight", "trainable.weight"]
    for axes in (forward, backward):
        lines = [line for line in axes.lines if line.get_marker() == "None"]
        found = [(line.get_ydata()[0], to_hex(line.get_color()).upper()) for line in lines]
        assert found == [(0, FROZEN), (1, TRAINABLE)]
        bottom, top = axes.get_ylim()
        assert bottom > 1 and top < 0


def test_the_legend_names_colours_and_the_operations_that_occur(graphs):
    (legend,) = plot_graph_operations(graphs).legends
    names = [text.get_text() for text in legend.get_texts()]
    assert names == ["frozen", "trainable", "gather", "prefetch", "release", "reduce"]
    assert [to_hex(p.get_facecolor()).upper() for p in legend.get_patches()] == [FROZEN, TRAINABLE]
    assert {line.get_color() for line in legend.get_lines()} == {NEUTRAL}
    (legend,) = plot_graph_operations(graphs[1:]).legends
    assert [text.get_text() for text in legend.get_texts()] == ["frozen", "trainable", "reduce"]


@pytest.mark.parametrize(
    ("count", "shape"), [(1, (1, 1)), (2, (1, 2)), (3, (2, 2)), (4, (2, 2)), (6, (3, 2))]
)
def test_panels_stand_two_in_a_row(graphs, count, shape):
    figure = plot_graph_operations((graphs * 3)[:count])
    grid = figure.axes[0].get_gridspec()
    assert (grid.nrows, grid.ncols) == shape
    assert sum(axes.get_visible() for axes in figure.axes) == count


@pytest.mark.parametrize("count", [1, 2, 3])
@pytest.mark.parametrize("prefix", ["", "base_model.model.model.layers.0.self_attn.q_proj.lora_A.default."])
def test_it_can_be_read(graphs, assert_readable, count, prefix):
    for graph in graphs:
        for row in graph["rows"]:
            row["names"] = [prefix + name for name in row["names"]]
    figure = plot_graph_operations((graphs * 2)[:count])
    shown = assert_readable(figure)
    assert {f"{prefix}frozen.weight", "Forward graph, step 5", "gather"} <= set(shown)


def test_a_node_has_a_whole_number(graphs):
    del graphs[1]["rows"][3:]
    for axes in plot_graph_operations(graphs).axes:
        assert all(float(place).is_integer() for place in axes.get_xticks())


def test_no_graph_is_an_error_that_says_what_to_do():
    with pytest.raises(DskitError, match="no graph to draw") as caught:
        plot_graph_operations([])
    assert "deepcompile" in caught.value.todo
