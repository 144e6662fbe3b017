"""What ranks print, shown while they run: labelled by rank, and once where all ranks print the same.

A cell shows its first and its last lines and says how many it left out between them, so that a flood
neither fills the notebook nor hides how it ended. A progress bar (a line that ends with a carriage return)
is redrawn in place where the display can, and printed a line for each change where it cannot.
"""

import os
import sys
import time
from collections import deque

# A line waits this long for the other ranks to print the same, in seconds.
_MERGE_SECONDS = 0.5

# Lines of one cell that are shown: so many at once, and of what follows so many at the end.
HEAD_LINES = 1000
TAIL_LINES = 200
_LINE_LENGTH = 2000

# Set by whoever runs a notebook into a log, where nothing can be redrawn (dskit.course does).
LOG_VARIABLE = "DSKIT_PLAIN_OUTPUT"


class OutputPrinter:
    """Prints the growing output of one cell on several ranks.

    Args:
        ranks: number of ranks.
    """

    def __init__(self, ranks: int):
        self._screen = Screen()
        self._streams = {
            "stdout": _Stream(ranks, self._screen, sys.stdout),
            "stderr": _Stream(ranks, self._screen, sys.stderr),
        }

    def update(self, stdout: list[str], stderr: list[str]) -> None:
        """Take each rank's output so far, and print what can be printed."""
        self._streams["stdout"].update(stdout)
        self._streams["stderr"].update(stderr)

    def finish(self, outputs: list[list[dict]]) -> None:
        """Print what is left, then show rich outputs (figures, tables) by rank."""
        for stream in self._streams.values():
            stream.flush()
        self._screen.finish()
        for rank, rank_outputs in enumerate(outputs or []):
            for output in rank_outputs:
                _display(rank, output)


class Screen:
    """Where lines go: head at once, tail at the end, and a note between them of what was left out."""

    def __init__(self, head: int = HEAD_LINES, tail: int = TAIL_LINES):
        self.room = head
        self.tail: deque = deque(maxlen=tail)
        self.left_out = 0
        self.redraws = os.environ.get(LOG_VARIABLE) != "1"
        self._drawn = ""

    def line(self, text: str, target) -> None:
        """Show a line, or keep it for the end."""
        if self.room > 0:
            self.room -= 1
            self._write(_short(text) + "\n", target)
            return
        if len(self.tail) == self.tail.maxlen:
            self.left_out += 1
        self.tail.append((_short(text), target))

    def progress(self, text: str, target) -> None:
        """Show a line that will be written over."""
        if self._drawn == text or self.room <= 0:
            return
        if self.redraws:
            target.write("\r" + text.ljust(len(self._drawn)))
            target.flush()
            self._drawn = text
        else:
            self.line(text, target)
            self._drawn = text

    def finish(self) -> None:
        """Show the note and the tail."""
        if self.left_out:
            note = f"{self.left_out:,} lines left out; {HEAD_LINES:,} are above, {len(self.tail)} follow"
            self._write(f"[... {note} ...]\n", sys.stdout)
        for text, target in self.tail:
            self._write(text + "\n", target)
        self.tail.clear()
        self._write("", sys.stdout)

    def _write(self, text: str, target) -> None:
        if self._drawn and self.redraws:
            target.write("\n")
        self._drawn = ""
        target.write(text)
        target.flush()


class _Stream:
    def __init__(self, ranks: int, screen: Screen, target):
        self.screen = screen
        self.target = target
        self.taken = [0] * ranks
        self.partial = [""] * ranks
        self.lines: list[deque] = [deque() for _ in range(ranks)]

    def update(self, texts: list[str]) -> None:
        now = time.monotonic()
        for rank, text in enumerate(texts):
            if len(text) == self.taken[rank]:
                continue
            new = self.partial[rank] + text[self.taken[rank] :]
            self.taken[rank] = len(text)
            *complete, self.partial[rank] = new.split("\n")
            self.lines[rank].extend((now, _last_drawn(line)) for line in complete)
        self._emit(now - _MERGE_SECONDS)
        self._draw_progress()

    def flush(self) -> None:
        for rank, rest in enumerate(self.partial):
            if rest:
                self.lines[rank].append((0.0, _last_drawn(rest)))
        self.partial = [""] * len(self.partial)
        self._emit(float("inf"))

    def _draw_progress(self) -> None:
        bars = {rank: _last_drawn(text) for rank, text in enumerate(self.partial) if "\r" in text}
        if bars:
            ranks_of: dict[str, list[int]] = {}
            for rank, bar in bars.items():
                ranks_of.setdefault(bar, []).append(rank)
            shown = "  ".join(f"{self._label(who)} {bar}" for bar, who in ranks_of.items())
            self.screen.progress(shown, self.target)

    def _emit(self, before: float) -> None:
        while any(self.lines):
            heads = [queue[0] if queue else None for queue in self.lines]
            if all(heads) and len({line for _, line in heads}) == 1:
                self._show(list(range(len(heads))), heads[0][1])
                for queue in self.lines:
                    queue.popleft()
                continue
            ripe = [rank for rank, head in enumerate(heads) if head and (head[0] <= before or all(heads))]
            if not ripe:
                return
            for rank in ripe:
                self._show([rank], self.lines[rank].popleft()[1])

    def _show(self, who: list[int], line: str) -> None:
        if line:
            self.screen.line(f"{self._label(who)} {line}", self.target)

    def _label(self, who: list[int]) -> str:
        everybody = len(who) == len(self.lines) > 1
        return "[all ranks]" if everybody else f"[rank {', '.join(map(str, who))}]"


def _last_drawn(line: str) -> str:
    """What a terminal shows of a line with carriage returns: the last part that was drawn."""
    parts = [part for part in line.split("\r") if part.strip()]
    return parts[-1] if parts else ""


def _short(text: str) -> str:
    if len(text) <= _LINE_LENGTH:
        return text
    return f"{text[:_LINE_LENGTH]} [... {len(text) - _LINE_LENGTH:,} characters left out]"


def _display(rank: int, output: dict) -> None:
    from IPython.display import display

    print(f"[rank {rank}]", flush=True)
    display(output["data"], raw=True, metadata=output.get("metadata"))
