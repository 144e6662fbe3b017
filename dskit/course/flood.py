"""A cell that prints without end must not make a notebook that nobody can open.

Of what a cell prints, the first part is kept as it comes and the last part is kept to the end; what lay
between is counted and left out (case N8: 200,000 lines).
"""

HEAD_CHARACTERS = 400_000
TAIL_CHARACTERS = 100_000


class Flood:
    """The printed output of one cell.

    Args:
        head: characters that are kept as they come.
        tail: characters that are kept of what follows.
    """

    def __init__(self, head: int = HEAD_CHARACTERS, tail: int = TAIL_CHARACTERS):
        self.room = head
        self.limit = tail
        self.tail = ""
        self.left_out = 0
        self.lines_left_out = 0

    def take(self, text: str) -> str:
        """Take what was printed; returns the part of it that is shown at once."""
        shown, held = text[: self.room], text[self.room :]
        self.room -= len(shown)
        self.tail += held
        if len(self.tail) > 2 * self.limit:  # not at every message: this copies
            self._trim()
        return shown

    def ending(self) -> str:
        """What is shown when the cell is done: a note of what was left out, and the tail; or nothing."""
        self._trim()
        if not self.left_out:
            return self.tail
        note = f"[... {self.left_out:,} characters ({self.lines_left_out:,} lines) left out ...]"
        return f"\n{note}\n{self.tail}"

    def _trim(self) -> None:
        surplus = len(self.tail) - self.limit
        if surplus > 0:
            self.left_out += surplus
            self.lines_left_out += self.tail.count("\n", 0, surplus)
            self.tail = self.tail[surplus:]
