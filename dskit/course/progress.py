"""What the terminal shows while notebooks run: a bar each, or a line for each change where there is no
terminal."""

from typing import Protocol

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn

from dskit.course.result import Result


class Watcher(Protocol):
    """Is told how a run goes on. ``number`` counts code cells from 1, as Jupyter's ``In [n]`` does."""

    def started(self, result: Result, total: int) -> None: ...

    def cell(self, result: Result, number: int, total: int) -> None: ...

    def finished(self, result: Result) -> None: ...


class Silent:
    """Shows nothing."""

    def started(self, result: Result, total: int) -> None: ...

    def cell(self, result: Result, number: int, total: int) -> None: ...

    def finished(self, result: Result) -> None: ...


def summary(result: Result) -> str:
    """One line on a finished notebook."""
    if result.failure is None:
        return f"{result.name}: passed in {result.seconds:.1f} s"
    failure = result.failure
    return f"{result.name}: failed {failure.place} after {result.seconds:.1f} s: {failure.reason}"


class Terminal:
    """Shows a progress bar on a terminal, and plain lines in a log.

    Use it as a context manager, so that the terminal is left in order.
    """

    def __init__(self, console: Console | None = None):
        self.console = console or Console()
        columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeElapsedColumn())
        self.bars = Progress(*columns, console=self.console) if self.console.is_terminal else None
        self._task = None

    def __enter__(self) -> "Terminal":
        if self.bars:
            self.bars.start()
        return self

    def __exit__(self, *_) -> None:
        if self.bars:
            self.bars.stop()

    def started(self, result: Result, total: int) -> None:
        if self.bars:
            self._task = self.bars.add_task(result.name, total=total)
        else:
            self._say(f"{result.name}: {total} cells")

    def cell(self, result: Result, number: int, total: int) -> None:
        if self.bars:
            self.bars.update(self._task, completed=number - 1)
        else:
            self._say(f"{result.name}: cell {number}/{total}")

    def finished(self, result: Result) -> None:
        if self.bars and self._task is not None:
            if result.passed:
                self.bars.update(self._task, completed=self.bars.tasks[self._task].total)
            self.bars.stop_task(self._task)
        self._say(summary(result))

    def _say(self, line: str) -> None:
        self.console.print(line, markup=False, highlight=False, soft_wrap=True)
