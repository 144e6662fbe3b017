"""One look for every figure: readable on a slide, and in colours that a colour-blind reader can part."""

import contextlib

import matplotlib

# From the palette of Okabe and Ito (2008). Frozen and trainable have these colours in every figure.
FROZEN = "#0072B2"
TRAINABLE = "#E69F00"
NEUTRAL = "#666666"
SERIES = ("#009E73", "#CC79A7", "#56B4E9", "#D55E00")

_STYLE = {
    "figure.dpi": 110,
    "savefig.dpi": 160,
    "figure.constrained_layout.use": True,
    "font.size": 12,
    "axes.titlesize": 13,
    "axes.titlelocation": "left",
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.grid": True,
    "axes.axisbelow": True,
    "grid.color": "#e6e6e6",
    "legend.frameon": False,
    "lines.linewidth": 2,
}


@contextlib.contextmanager
def figure_style():
    """The style, inside the block alone: a notebook's own settings stay as they are."""
    # Not rc_context: it would also take back what the first figure of a notebook switches on for good,
    # the interactive mode in which figures show up under their cell.
    saved = {key: matplotlib.rcParams[key] for key in _STYLE}
    matplotlib.rcParams.update(_STYLE)
    try:
        yield
    finally:
        matplotlib.rcParams.update(saved)


def color_of(trainable: bool) -> str:
    """The colour of a trainable or a frozen parameter."""
    return TRAINABLE if trainable else FROZEN


def label_width(labels: list[str]) -> float:
    """About the width of the longest label, in inches at the style's font size."""
    return 0.1 * max(map(len, labels), default=0)
