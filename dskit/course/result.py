"""What is known of a notebook's run: ``Result``, and ``Failure`` for where and why it stopped."""

import re
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

# Escape sequences of a terminal: colours, cursor moves, and links (OSC, ended by BEL or ST).
_ANSI = re.compile(r"\x1b\[[0-9;:?]*[ -/]*[@-~]|\x1b\][^\x07\x1b]*(?:\x07|\x1b\\)")

WAITING, RUNNING, PASSED, FAILED = "waiting", "running", "passed", "failed"


def strip_ansi(text: str) -> str:
    """The text without a terminal's escape sequences."""
    return _ANSI.sub("", text)


@dataclass
class Failure:
    """Why a notebook did not pass.

    Args:
        reason: one line, such as ``AssertionError: loss rose``.
        cell: number of the failing code cell, counted as Jupyter counts (the n of ``In [n]``), or None
            where no cell is to blame: a kernel that did not start, a file that could not be written.
        source: the failing cell's code.
        traceback: the traceback, without escape sequences.
    """

    reason: str
    cell: int | None = None
    source: str = ""
    traceback: str = ""

    @property
    def place(self) -> str:
        return "before its first cell" if self.cell is None else f"in cell {self.cell}"


@dataclass
class Result:
    """One notebook's run.

    Args:
        notebook: the notebook that was run.
        executed: where the executed copy is, whole or partial; it may not exist if the run never began.
        parameters: the parameters in effect: the notebook's defaults, and over them what was given.
        state: ``waiting``, ``running``, ``passed`` or ``failed``.
        seconds: wall time of the run, None while it waits.
        failure: where and why it stopped, None if it did not.
        figures: the figures that were taken out of it, in order.
        html: its rendering, None if there is none.
        notes: what went wrong after the run and left its results as they are.
    """

    notebook: Path
    executed: Path
    parameters: dict[str, Any] = field(default_factory=dict)
    state: str = WAITING
    seconds: float | None = None
    failure: Failure | None = None
    figures: list[Path] = field(default_factory=list)
    html: Path | None = None
    notes: list[str] = field(default_factory=list)

    @property
    def name(self) -> str:
        return self.notebook.stem

    @property
    def passed(self) -> bool:
        return self.state == PASSED
