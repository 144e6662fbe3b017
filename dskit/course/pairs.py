"""A notebook and its text: ``notebooks/NN_name.ipynb`` beside ``notebooks/text/NN_name.py`` (py:percent).

The text is what people edit and what a diff shows; the notebook is made from it, without outputs.
"""

import hashlib
from collections import Counter
from pathlib import Path

import nbformat

from dskit.course.places import TEXTS, numbered
from dskit.errors import DskitError

FORMAT = "py:percent"
_METADATA = {
    "kernelspec": {"display_name": "Python 3 (ipykernel)", "language": "python", "name": "python3"},
    "language_info": {"name": "python"},
}


def texts(folder: Path) -> list[Path]:
    """The texts of a course's folder, in order."""
    return sorted((folder / TEXTS).glob("*.py"))


def text_of(notebook: Path) -> Path:
    """Where the text of a notebook is."""
    return notebook.parent / TEXTS / f"{notebook.stem}.py"


def notebook_of(text: Path) -> Path:
    """Where the notebook of a text is."""
    return text.parent.parent / f"{text.stem}.ipynb"


def from_text(text: Path) -> nbformat.NotebookNode:
    """The notebook that a text describes. The same text always gives the same bytes.

    Raises:
        DskitError: the text cannot be read.
    """
    import jupytext

    try:
        notebook = jupytext.read(text, fmt=FORMAT)
    except Exception as error:  # jupytext raises whatever its parsers do
        raise DskitError(
            f"{text.name} cannot be read as {FORMAT}.", f"Found: {type(error).__name__}: {error}"
        ) from error
    notebook.nbformat, notebook.nbformat_minor = 4, 5
    kept = {key: value for key, value in notebook.metadata.items() if key != "jupytext"}
    notebook.metadata = nbformat.from_dict({**_METADATA, **kept})
    _name_cells(notebook)
    return notebook


def _name_cells(notebook: nbformat.NotebookNode) -> None:
    """Give each cell an id made from its content, so that a change to one cell is a change to one cell."""
    seen = Counter()
    for cell in notebook.cells:
        digest = hashlib.sha256(f"{cell.cell_type}\n{cell.source}".encode()).hexdigest()[:12]
        seen[digest] += 1
        cell["id"] = digest if seen[digest] == 1 else f"{digest}-{seen[digest]}"


def sync(folder: Path) -> list[Path]:
    """Write every notebook from its text.

    Returns:
        The notebooks that changed; one that is as its text says is not touched.

    Raises:
        DskitError: there are no texts, or one cannot be read. Nothing has been written then.
    """
    made = {notebook_of(text): nbformat.writes(from_text(text)) + "\n" for text in _some(folder)}
    changed = [
        notebook
        for notebook, content in made.items()
        if not notebook.is_file() or notebook.read_text(encoding="utf-8") != content
    ]
    for notebook in changed:
        notebook.write_text(made[notebook], encoding="utf-8")
    return changed


def _some(folder: Path) -> list[Path]:
    found = texts(folder)
    if not found:
        raise DskitError("The course has no texts.", f"Found: no .py file in {folder / TEXTS}.")
    return found


def check(folder: Path) -> list[str]:
    """What is wrong with the pairs of a course's folder; nothing if each notebook is as its text says.

    Returns:
        One line for each difference: a partner that is missing, a cell whose kind, source, tags or other
        metadata differ, an output or an execution count in a notebook.
    """
    notebooks = sorted({*numbered(folder), *(notebook_of(text) for text in _some(folder))})
    return [f"{notebook.stem}: {line}" for notebook in notebooks for line in _differences(notebook)]


def _differences(notebook: Path) -> list[str]:
    text = text_of(notebook)
    if not text.is_file():
        return [f"has no text {TEXTS}/{text.name}"]
    if not notebook.is_file():
        return ["the notebook is missing"]
    try:
        kept = nbformat.read(notebook, as_version=4)
    except Exception as error:  # nbformat raises whatever its parsers do
        return [f"the notebook cannot be read: {type(error).__name__}: {error}"]
    wanted = from_text(text)
    lines = [] if kept.metadata == wanted.metadata else ["the notebook's metadata differ"]
    if len(kept.cells) != len(wanted.cells):
        lines.append(f"the notebook has {len(kept.cells)} cells, its text {len(wanted.cells)}")
    for number, (cell, want) in enumerate(zip(kept.cells, wanted.cells, strict=False), start=1):
        lines += [
            f"cell {number} of {len(kept.cells)}: its {part} differs from the text"
            for part in ("cell_type", "source", "metadata")
            if cell[part] != want[part]
        ]
    return lines + _traces(kept)


def _traces(notebook: nbformat.NotebookNode) -> list[str]:
    """Lines on what a run left in a notebook."""
    lines = []
    for number, cell in enumerate(notebook.cells, start=1):
        if cell.get("outputs"):
            lines.append(f"cell {number} of {len(notebook.cells)}: has outputs")
        if cell.get("execution_count") is not None:
            lines.append(f"cell {number} of {len(notebook.cells)}: has an execution count")
    return lines
