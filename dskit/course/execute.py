"""Running notebooks, one after another, each in a fresh kernel of this environment.

A notebook that fails is kept as far as it came, and the others still run.
"""

import logging
import math
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import nbformat

from dskit.course import parameters as course_parameters
from dskit.course import report
from dskit.course.progress import Silent, Watcher
from dskit.course.result import FAILED, PASSED, RUNNING, Failure, Result, strip_ansi
from dskit.errors import DskitError

DEFAULT_CELL_DEADLINE = 300.0
"""Seconds that a cell may take."""

START_TIMEOUT = 120
"""Seconds that a kernel may take to start."""


def run_notebooks(
    notebooks: Sequence[Path | str],
    out: Path | str,
    parameters: Mapping[str, Any] | None = None,
    *,
    cell_deadline: float = DEFAULT_CELL_DEADLINE,
    progress: Watcher | None = None,
    index: bool = True,
) -> list[Result]:
    """Run notebooks through papermill and leave the results in a folder.

    Everything that can be checked is checked before the first kernel starts. The working directory of a
    kernel is the folder of its notebook.

    Args:
        notebooks: the notebooks, in the order in which they run.
        out: folder of the results: ``<name>.ipynb`` (partial if the notebook failed),
            ``figures/<name>-<nn>.png``, and with ``index`` ``<name>.html`` and ``index.html``.
        parameters: name to value; each goes to the notebooks that declare it, over their default.
        cell_deadline: seconds that a cell may take, at least 1; whole seconds count, rounded up.
        progress: is told of each step.
        index: whether to write the HTML pages.

    Returns:
        One result for each notebook. A notebook's failure is in its result, it does not raise.

    Raises:
        DskitError: no run was begun: a notebook is missing or unreadable, no notebook declares a parameter,
            a value does not fit, the deadline is not positive, the folder cannot be written.
    """
    notebooks = [Path(notebook).resolve() for notebook in notebooks]
    deadline = _seconds(cell_deadline)
    _check_files(notebooks)
    given = course_parameters.check(notebooks, parameters or {})
    out = _folder(Path(out).resolve(), notebooks)
    results = [_planned(notebook, out, given[notebook]) for notebook in notebooks]
    for result in results:
        report.remove_old(result, out)
    for result in results:
        try:
            _run(result, given[result.notebook], deadline, progress or Silent())
        finally:  # also after Ctrl-C: what ran is worth seeing
            report.add(result, results, out, index=index)
    return results


def _seconds(cell_deadline: float) -> int:
    if not (isinstance(cell_deadline, (int, float)) and 0 < cell_deadline < math.inf):
        raise DskitError(
            "The deadline of a cell is a positive number of seconds.",
            f"Found: {cell_deadline!r}.",
            f"Leave it out for {DEFAULT_CELL_DEADLINE:.0f} s.",
        )
    return math.ceil(cell_deadline)


def _check_files(notebooks: list[Path]) -> None:
    for notebook in notebooks:
        if not notebook.is_file():
            raise DskitError(f"There is no notebook {notebook}.")
    names = [notebook.stem for notebook in notebooks]
    twice = sorted({name for name in names if names.count(name) > 1})
    if twice:
        raise DskitError(
            "Two notebooks of one name would overwrite each other's results.",
            f"Found twice: {', '.join(twice)}.",
            "Run them into two folders.",
        )


def _folder(out: Path, notebooks: list[Path]) -> Path:
    if any(notebook.parent == out for notebook in notebooks):
        raise DskitError(
            "The results would overwrite the notebooks themselves.",
            f"Found: {out} is the folder of the notebooks.",
            "Name another folder with --out.",
        )
    try:
        out.mkdir(parents=True, exist_ok=True)
        (out / "figures").mkdir(exist_ok=True)
    except OSError as error:
        raise DskitError(
            "The folder of the results cannot be made.", f"Found: {error}.", "Name another one with --out."
        ) from error
    return out


def _planned(notebook: Path, out: Path, given: dict[str, Any]) -> Result:
    defaults = {
        name: value
        for name, value in course_parameters.declared(notebook).items()
        if value is not ... and not isinstance(value, type)
    }
    return Result(notebook, out / notebook.name, parameters={**defaults, **given})


def runnable(cell) -> bool:
    """Whether a cell is run, and so counted by Jupyter's ``In [n]``."""
    skipped = "skip-execution" in cell.metadata.get("tags", [])
    return cell.cell_type == "code" and bool(cell.source.strip()) and not skipped


def _run(result: Result, given: dict[str, Any], deadline: int, progress: Watcher) -> None:
    started = time.monotonic()
    result.state = RUNNING
    cells = _Cells(result, progress)
    try:
        source = nbformat.read(result.notebook, as_version=4)
        cells.total = sum(runnable(cell) for cell in source.cells) + bool(given)
        progress.started(result, cells.total)
        result.failure = _execute(source, result, given, deadline, cells.next)
    except Exception as error:  # a kernel that does not start, a full disk: this notebook's, not the others'
        result.failure = Failure(f"{type(error).__name__}: {error}", cells.number)
    except BaseException as error:  # Ctrl-C
        result.failure = Failure(f"stopped by {type(error).__name__}", cells.number)
        raise
    finally:
        result.seconds = time.monotonic() - started
        result.state = FAILED if result.failure else PASSED
    progress.finished(result)


class _Cells:
    """Counts a notebook's cells as they start; ``number`` is None before the first."""

    def __init__(self, result: Result, progress: Watcher):
        self.result, self.progress = result, progress
        self.number, self.total = None, 0

    def next(self, **_) -> None:
        self.number = (self.number or 0) + 1
        self.progress.cell(self.result, self.number, self.total)


def _execute(
    source, result: Result, given: dict[str, Any], deadline: int, on_cell: Callable[..., None]
) -> Failure | None:
    """Run one notebook; the failure that stands in its executed copy, None if there is none."""
    import papermill

    from dskit.course.engine import ENGINE
    from dskit.course.kernel import KERNEL_NAME

    logging.getLogger("papermill").setLevel(logging.CRITICAL)  # what it warns of is checked or reported here
    source.metadata["kernelspec"] = {
        "name": KERNEL_NAME,
        "language": "python",
        "display_name": "Python 3 (ipykernel)",
    }
    try:
        papermill.execute_notebook(
            source,
            str(result.executed).replace("{", "{{").replace("}", "}}"),  # papermill formats paths
            dict(given),
            engine_name=ENGINE,
            kernel_name=KERNEL_NAME,
            language="python",
            progress_bar=False,
            start_timeout=START_TIMEOUT,
            cwd=result.notebook.parent,
            cell_deadline=deadline,
            on_cell_execute=on_cell,
        )
        marked = False
    except papermill.PapermillExecutionError:
        marked = True  # every error output is, also one that its cell's tag allows
    failure = _failure(result.executed)
    if marked and failure is None:
        _remove_marks(result.executed)
    return failure


def _failure(executed: Path) -> Failure | None:
    """Where an executed copy stopped. A cell tagged ``raises-exception`` may raise, as in Jupyter."""
    number = 0
    for cell in nbformat.read(executed, as_version=4).cells:
        number += runnable(cell)
        if cell.metadata.get("papermill", {}).get("exception"):
            return _of_cell(cell, number)
    return None


def _remove_marks(executed: Path) -> None:
    from papermill.execute import remove_error_markers

    nbformat.write(remove_error_markers(nbformat.read(executed, as_version=4)), executed)


def _of_cell(cell, number: int) -> Failure:
    raised = [output for output in cell.outputs if output.output_type == "error"]
    if not raised:
        return Failure("the cell failed without an error output", number, cell.source)
    error = raised[-1]
    return Failure(
        reason=strip_ansi(f"{error.ename}: {error.evalue}").strip().splitlines()[0],
        cell=number,
        source=cell.source,
        traceback=strip_ansi("\n".join(error.traceback)),
    )
