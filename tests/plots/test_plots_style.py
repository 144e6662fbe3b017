"""One style for all figures, in force while they are made and no longer."""

import matplotlib
import matplotlib.pyplot as plt
import pytest
from matplotlib.colors import to_rgb

from dskit import plots
from dskit.plots.style import FROZEN, SERIES, TRAINABLE, color_of, figure_style, label_width

RUN = [{"rank": 0, "step": step, "loss": 1.0 - 0.1 * step} for step in range(10)]


@pytest.fixture(params=["losses", "ownership", "graphs"])
def draw(request, ownership_rows, graphs):
    """Makes one of the figures."""
    return {
        "losses": lambda: plots.plot_losses_and_difference(RUN, RUN, ("a", "b")),
        "ownership": lambda: plots.plot_ownership(ownership_rows),
        "graphs": lambda: plots.plot_graph_operations(graphs),
    }[request.param]


def test_the_notebooks_own_settings_are_back_afterwards(draw):
    matplotlib.rcParams.update({"font.size": 7, "grid.color": "#ff0000"})
    before = dict(matplotlib.rcParams)
    try:
        draw()
        assert dict(matplotlib.rcParams) == before
        draw()
        assert dict(matplotlib.rcParams) == before
    finally:
        matplotlib.rcdefaults()
        matplotlib.use("Agg")


def test_settings_are_back_after_an_error():
    before = dict(matplotlib.rcParams)
    with pytest.raises(ZeroDivisionError), figure_style():
        assert matplotlib.rcParams["font.size"] == 12
        raise ZeroDivisionError
    assert dict(matplotlib.rcParams) == before


def test_what_a_figure_switches_on_for_good_stays_on():
    assert not matplotlib.rcParams["interactive"]
    try:
        with figure_style():
            matplotlib.rcParams["interactive"] = True
        assert matplotlib.rcParams["interactive"]
    finally:
        matplotlib.rcParams["interactive"] = False


def test_a_figure_that_is_drawn_later_keeps_the_style(draw):
    matplotlib.rcParams.update({"font.size": 7, "grid.color": "#ff0000"})
    try:
        figure = draw()
        figure.canvas.draw()
        for axes in figure.axes:
            for axis in (axes.xaxis, axes.yaxis):
                assert {tick.label1.get_fontsize() for tick in axis.get_major_ticks()} == {12}
                assert {line.get_color() for line in axis.get_gridlines()} == {"#e6e6e6"}
            assert axes.xaxis.label.get_fontsize() == 12
            assert not axes.spines["top"].get_visible()
    finally:
        matplotlib.rcdefaults()
        matplotlib.use("Agg")


def test_a_figure_is_the_same_when_it_is_made_again(draw, tmp_path):
    first, second = draw(), draw()
    assert first is not second and first.number != second.number
    pictures = []
    for figure in (first, second):
        figure.canvas.draw()
        pictures.append(bytes(figure.canvas.buffer_rgba()))
    assert pictures[0] == pictures[1]
    assert set(plt.get_fignums()) == {first.number, second.number}


def test_a_figure_can_be_saved_as_picture_and_as_vectors(draw, tmp_path):
    for name in ("figure.png", "figure.svg"):
        draw().savefig(tmp_path / name)
        assert (tmp_path / name).stat().st_size > 5000


def test_one_colour_for_frozen_and_one_for_trainable():
    assert (color_of(False), color_of(True)) == (FROZEN, TRAINABLE)


def test_frozen_and_trainable_differ_in_lightness_too():
    def lightness(color):
        return sum(
            weight * part for weight, part in zip((0.2126, 0.7152, 0.0722), to_rgb(color), strict=True)
        )

    assert lightness(TRAINABLE) - lightness(FROZEN) > 0.2, "they can be told apart in grey"
    assert not {FROZEN, TRAINABLE} & set(SERIES), "a run never has the colour of a parameter"


def test_long_labels_get_more_room():
    assert label_width([]) == 0
    assert label_width(["a", "abc" * 10]) == pytest.approx(3)
