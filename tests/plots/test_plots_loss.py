"""The figure of two runs that must agree, and the number beside it."""

import math

import pytest
from matplotlib.colors import to_hex

from dskit.errors import DskitError
from dskit.plots import plot_losses_and_difference
from dskit.plots.loss import largest_difference
from dskit.plots.style import SERIES

NAMES = ("ZeRO-0, eager", "DeepCompile, inductor")


def rows(steps=10, ranks=2, change=lambda rank, step: 0.0):
    """Losses that fall with the step and differ by rank."""
    return [
        {"rank": rank, "step": step, "loss": 0.9**step + rank + change(rank, step)}
        for rank in range(ranks)
        for step in range(steps)
    ]


def curves(axes):
    """Lines with data, without the mark of the warm-up."""
    return [line for line in axes.lines if line.get_linestyle() != "--"]


def marks(axes):
    return [line.get_xdata()[0] for line in axes.lines if line.get_linestyle() == "--"]


def test_both_runs_are_drawn_as_the_mean_over_the_ranks():
    run = rows(change=lambda rank, step: 0.5 * rank)
    above, _ = plot_losses_and_difference(rows(), run, NAMES).axes
    baseline, compared = curves(above)
    assert list(baseline.get_xdata()) == list(range(10))
    assert baseline.get_ydata() == pytest.approx([0.9**step + 0.5 for step in range(10)])
    assert compared.get_ydata() == pytest.approx([0.9**step + 0.75 for step in range(10)])


def test_the_difference_is_the_largest_on_any_rank():
    run = rows(change=lambda rank, step: (-1) ** rank * 1e-7 * step * (rank + 1))
    _, below = plot_losses_and_difference(rows(), run, NAMES).axes
    (difference,) = curves(below)
    assert difference.get_ydata() == pytest.approx([2e-7 * step for step in range(10)], abs=1e-12)
    assert below.get_ylim()[0] == 0


def test_rows_may_come_in_any_order():
    run = rows(change=lambda rank, step: 0.1 * step)
    _, below = plot_losses_and_difference(rows(), run[::-1], NAMES).axes
    assert curves(below)[0].get_ydata() == pytest.approx([0.1 * step for step in range(10)])


def test_labels_titles_and_legend():
    figure = plot_losses_and_difference(rows(), rows(), NAMES)
    above, below = figure.axes
    assert (above.get_title("left"), below.get_title("left")) == ("Loss", "Largest difference on any rank")
    assert above.get_ylabel() == "mean squared error"
    assert (below.get_xlabel(), below.get_ylabel()) == ("step", "|difference|")
    (legend,) = figure.legends
    assert [text.get_text() for text in legend.get_texts()] == list(NAMES)
    assert [to_hex(line.get_color()).upper() for line in legend.get_lines()] == [SERIES[0], "#000000"]


def texts(axes):
    return [text.get_text() for text in axes.texts]


@pytest.mark.parametrize(("steps", "marked"), [(5, []), (6, [4.5]), (10, [4.5])])
def test_the_warm_up_is_marked_where_the_run_gets_there(steps, marked):
    above, below = plot_losses_and_difference(rows(steps), rows(steps), NAMES).axes
    assert marks(above) == marks(below) == marked
    assert texts(above) == ["prefetch and selective gather from here"] * len(marked)
    assert below.get_xlim()[1] < steps


def test_the_mark_is_explained_inside_the_axes():
    for steps in (6, 8, 10, 60):
        figure = plot_losses_and_difference(rows(steps), rows(steps), NAMES)
        figure.canvas.draw()
        (text,) = figure.axes[0].texts
        frame = figure.axes[0].get_window_extent()
        assert frame.x0 < text.get_window_extent().x0 and text.get_window_extent().x1 < frame.x1


def test_another_warm_up_moves_the_mark():
    above, _ = plot_losses_and_difference(rows(), rows(), NAMES, warmup=3).axes
    assert marks(above) == [2.5]


def test_equal_runs_are_called_equal_and_others_are_not():
    equal = plot_losses_and_difference(rows(), rows(), NAMES).axes[1]
    assert texts(equal) == ["equal to the last bit"]
    run = rows(change=lambda rank, step: 2**-52 if (rank, step) == (1, 9) else 0.0)
    assert run != rows(), "the last bit of one loss"
    other = plot_losses_and_difference(rows(), run, NAMES).axes[1]
    assert texts(other) == []


@pytest.mark.parametrize(
    ("steps", "size"), [(1, 0.0), (3, 1e-7), (6, 0.0), (10, 1e-7), (10, 0.3), (100, 0.0)]
)
def test_it_can_be_read(assert_readable, steps, size):
    run = rows(steps, change=lambda rank, step: size * (step % 3))
    figure = plot_losses_and_difference(rows(steps), run, NAMES)
    shown = assert_readable(figure)
    assert {*NAMES, "Loss", "step", "0"} <= set(shown)
    assert not any(axes.yaxis.get_offset_text().get_text() for axes in figure.axes), "a factor at the title"


def test_steps_are_whole_numbers():
    for steps in (1, 3, 57):
        figure = plot_losses_and_difference(rows(steps), rows(steps), NAMES)
        assert all(float(place).is_integer() for place in figure.axes[1].get_xticks())


def test_a_run_that_diverged_is_drawn(assert_readable):
    run = rows(change=lambda rank, step: math.nan if step > 3 else 0.0)
    figure = plot_losses_and_difference(rows(), run, NAMES)
    assert_readable(figure)
    assert texts(figure.axes[1]) == []


# ---- the number -------------------------------------------------------------------------------------------


def test_the_largest_difference_is_over_all_ranks_and_steps():
    run = rows(change=lambda rank, step: -0.25 if (rank, step) == (1, 7) else 0.125)
    assert largest_difference(rows(), run) == pytest.approx(0.25)
    assert largest_difference(rows(), rows()) == 0


def test_a_loss_that_is_no_number_is_no_agreement():
    run = rows(change=lambda rank, step: math.nan if (rank, step) == (0, 4) else 0.0)
    difference = largest_difference(rows(), run)
    assert math.isnan(difference) and not difference <= 1e-6


MISFITS = {
    "fewer steps": (rows(10), rows(9)),
    "one step": (rows(10), rows(1)),  # NumPy would stretch it over all steps
    "one rank": (rows(), rows(ranks=1)),
    "a rank is missing": (rows(), [row for row in rows() if row["rank"] == 1]),
    "a step is missing": (rows(), rows()[:-1]),
    "nothing": ([], []),
    "no baseline": ([], rows()),
}


@pytest.mark.parametrize("case", MISFITS)
def test_runs_that_do_not_fit_are_refused(case):
    for compare in (largest_difference, lambda a, b: plot_losses_and_difference(a, b, NAMES)):
        with pytest.raises(DskitError, match="cannot be compared") as caught:
            compare(*MISFITS[case])
    baseline, run = MISFITS[case]
    assert f"has {len(baseline)} rows" in caught.value.found and f" {len(run)} rows" in caught.value.found
