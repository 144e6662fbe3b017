"""The lookup for people: the lines of its loop as they are on disk, and the condition as a patch."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from dskit.guard import refusals
from dskit.guard.installed import PATH_IN_REPOSITORY, read
from dskit.guard.source import edited_text, split_lines, unified_diff


@dataclass(frozen=True)
class Excerpt:
    """Lines of a source file with their real numbers; prints as a numbered listing, the lookup marked by `>`.

    Attributes:
        file: path of the source file.
        lines: pairs of a 1-based line number and the line's text without its newline.
        lookup: line number of the lookup.
    """

    file: Path
    lines: tuple[tuple[int, str], ...]
    lookup: int

    def __str__(self) -> str:
        width = len(str(self.lines[-1][0]))
        marked = ((">" if number == self.lookup else " ", number, text) for number, text in self.lines)
        return "\n".join(f"{mark} {number:{width}}  {text}".rstrip() for mark, number, text in marked)

    def _repr_pretty_(self, printer: object, cycle: bool) -> None:
        printer.text(str(self))  # how a notebook shows it


def diff(direction: str = "on") -> str:
    """The patch that adds the condition to the installed init_z3.py ("on") or takes it out ("off").

    A unified diff that `git apply` and `patch -p1` take in a checkout; empty if the source has that shape.
    Read from disk: what the switch did to the running code does not show here.

    Raises:
        ValueError: the direction is neither "on" nor "off".
        GuardError: DeepSpeed is not installed, or its source is not one that the condition alone repairs.
    """
    found = read()
    refusals.require_switchable(found)
    return unified_diff(found.text, edited_text(found.text, direction), PATH_IN_REPOSITORY)


def lookup_source(direction: str | None = None, *, context: int = 0) -> Excerpt:
    """The loop over the parameters in the installed init_z3.py, with `context` lines on either side.

    With a direction, the same lines with the condition ("on") or without it ("off"). Read from disk.

    Raises:
        ValueError: the direction is neither None, "on" nor "off", or context is negative.
        GuardError: DeepSpeed is not installed or has no lookup of a known shape; with a direction, also where
            `diff` refuses.
    """
    if context < 0:
        raise ValueError(f"context must be 0 lines or more, not {context}")
    found = read()
    text, lookup = found.text, found.lookup
    if direction is not None or lookup.shape == "unknown":
        refusals.require_switchable(found)
        text = edited_text(text, direction)
    lines = split_lines(text)
    first, last = max(lookup.loop[0] - context, 1), min(lookup.loop[1] + context, len(lines))
    numbered = tuple((number, lines[number - 1].rstrip("\r\n")) for number in range(first, last + 1))
    return Excerpt(found.file, numbered, lookup.line)
