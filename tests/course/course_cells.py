"""Cells for the notebooks that the tests make and run."""

from nbformat import v4


def code(source: str, *tags: str):
    """A code cell with tags."""
    return v4.new_code_cell(source, metadata={"tags": list(tags)} if tags else {})


# A second "=" in the first line, as a comment may well have.
PARAMETERS = code(
    "steps = 10  # >= 6\nlr = 0.1\nbackend = 'eager'\nverbose = False\nsizes = [1, 2]\n", "parameters"
)

FIGURE = "import matplotlib.pyplot as plt\nplt.plot([1, 2])\nplt.show()"
