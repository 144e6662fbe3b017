"""Where the course's notebooks are, and which of them a name means."""

import difflib
import re
from pathlib import Path

import dskit
from dskit.errors import DskitError

_NUMBERED = re.compile(r"\d+_.+\.ipynb$")
FOLDER, TEXTS = "notebooks", "text"


def notebooks_folder(start: Path | None = None) -> Path:
    """The folder of the course.

    It is ``notebooks/`` of the current folder (or that folder itself) or of the nearest one above, else of
    the checkout that this package was installed from. A folder counts if it has ``text/`` or a numbered
    notebook.

    Args:
        start: where to begin, instead of the current folder.

    Raises:
        DskitError: there is none.
    """
    here = (start or Path.cwd()).resolve()
    above = [here, *here.parents]
    checkout = Path(dskit.__file__).resolve().parent.parent
    candidates = [here] if here.name == FOLDER else []
    candidates += [folder / FOLDER for folder in [*above, checkout]]
    for folder in candidates:
        if folder.is_dir() and ((folder / TEXTS).is_dir() or numbered(folder)):
            return folder
    raise DskitError(
        "The course's notebooks were not found.",
        f"Looked for a folder {FOLDER}/ in {here}, in those above it, and in {checkout}.",
        "Run this inside a checkout of the repository.",
    )


def numbered(folder: Path) -> list[Path]:
    """The numbered notebooks of a folder, in order."""
    return sorted(path for path in folder.glob("*.ipynb") if _NUMBERED.fullmatch(path.name))


def find(names: list[str], folder: Path | None = None) -> list[Path]:
    """The notebooks that the names mean: a path, a notebook's name, or its number.

    With no name, all numbered notebooks of the course.

    Args:
        names: such as ``01``, ``01_the_crash``, ``notebooks/01_the_crash.ipynb``.
        folder: the course's folder, looked for if it is not given.

    Raises:
        DskitError: a name means none, or more than one.
    """
    paths = [Path(name) for name in names]
    if names and all(path.suffix == ".ipynb" and path.is_file() for path in paths):
        return _once([path.resolve() for path in paths])
    folder = folder or notebooks_folder()
    course = numbered(folder)
    if not names:
        if not course:
            raise DskitError(
                "The course has no notebooks yet.",
                f"Found: no numbered .ipynb file in {folder}.",
                "Write them from their texts: dskit pair",
            )
        return course
    return _once([_one(name, folder, course) for name in names])


def _once(paths: list[Path]) -> list[Path]:
    return list(dict.fromkeys(paths))


def _one(name: str, folder: Path, course: list[Path]) -> Path:
    path = Path(name)
    if path.suffix == ".ipynb" and path.is_file():
        return path.resolve()
    stem = path.name.removesuffix(".ipynb")
    exact = folder / f"{stem}.ipynb"
    if exact.is_file():
        return exact
    by_number = [notebook for notebook in course if stem.isdigit() and _number(notebook) == int(stem)]
    if len(by_number) == 1:
        return by_number[0]
    stems = [notebook.stem for notebook in course]
    near = difflib.get_close_matches(stem, stems, n=1, cutoff=0.5)
    raise DskitError(
        f"There is no notebook {name}."
        if not by_number
        else f"More than one notebook has the number {name}.",
        f"Found in {folder}: {', '.join(stems) or 'no numbered notebook'}.",
        f"Did you mean {near[0]}?" if near else "",
    )


def _number(notebook: Path) -> int:
    return int(notebook.stem.split("_")[0])
