"""For tests of figures: rows as runs leave them, no window, and a check that a reader can read the figure."""

import itertools
import math

import matplotlib
import pytest

matplotlib.use("Agg")

NAMES = ("frozen.weight", "frozen.bias", "trainable.weight", "trainable.bias")


@pytest.fixture(autouse=True)
def closed_figures():
    """No figure is left to the next test."""
    yield
    import matplotlib.pyplot as plt

    plt.close("all")


def _texts(figure, renderer):
    """Every text that is drawn, with its box in pixels."""
    from matplotlib.text import Text

    hidden = set()
    for axes in figure.axes:
        for axis in (axes.xaxis, axes.yaxis):
            low, high = sorted(axis.get_view_interval())
            for tick in [*axis.get_major_ticks(), *axis.get_minor_ticks()]:
                if not (axes.get_visible() and low <= tick.get_loc() <= high):
                    hidden |= {tick.label1, tick.label2}
        if not axes.get_visible():
            hidden |= set(axes.findobj(Text))
    for text in figure.findobj(Text):
        if text.get_visible() and text.get_text().strip() and text not in hidden:
            yield text.get_text(), text.get_window_extent(renderer)


@pytest.fixture
def assert_readable():
    """Draws a figure, and fails if a text leaves it or lies upon another one."""

    def check(figure):
        figure.canvas.draw()
        texts = list(_texts(figure, figure.canvas.get_renderer()))
        width, height = figure.canvas.get_width_height()
        for text, box in texts:
            assert box.x0 >= -1 and box.y0 >= -1 and box.x1 <= width + 1 and box.y1 <= height + 1, (
                f"{text!r} leaves the figure: {box}"
            )
        for (text, box), (other, other_box) in itertools.combinations(texts, 2):
            assert not box.overlaps(other_box), f"{text!r} lies upon {other!r}"
        return [text for text, _ in texts]

    return check


@pytest.fixture
def ownership_rows():
    """The course's model on one of two ranks."""
    shapes = {name: (128, 128) if name.endswith("weight") else (128,) for name in NAMES}
    rows = []
    for ds_id, (name, shape) in enumerate(shapes.items()):
        elements = math.prod(shape)
        owned = name.startswith("trainable")
        rows.append(
            {"ds_id": ds_id, "name": name, "shape": shape, "trainable": owned, "elements": elements,
             "shard": elements // 2, "owned": owned, "gradient": elements // 2 if owned else 0}
        )  # fmt: skip
    return rows


@pytest.fixture
def graphs():
    """A forward and a backward graph with two parameters: (operation, parameters) of each node."""

    def graph(step, direction, *nodes):
        rows = [
            {"position": position, "operation": operation, "names": names,
             "trainable": [name.startswith("trainable") for name in names]}
            for position, (operation, *names) in enumerate(nodes)
        ]  # fmt: skip
        return {"step": step, "direction": direction, "rows": rows}

    frozen, weight, compute = "frozen.weight", "trainable.weight", ("call_function",)
    return [
        graph(5, "forward", ("placeholder",), ("prefetch", frozen, weight),
              ("gather", frozen), ("wait", frozen), compute, ("release", frozen),
              ("gather", weight), ("wait", weight), compute, ("release", weight), ("output",)),
        graph(5, "backward", ("placeholder",), compute, ("reduce", weight), ("end of backward",),
              ("output",)),
    ]  # fmt: skip
