"""What a failure of ranks looks like to the person who reads it: cause first, each traceback once."""

import re
from dataclasses import dataclass, field

from dskit.ranks.session import RanksError

_ANSI = re.compile(r"\x1b\[[0-9;]*m")


class RankFailure(RanksError):
    """A cell failed on a rank; shown without the kernel's own traceback, which says nothing."""

    def _render_traceback_(self):
        return str(self).splitlines()


@dataclass
class Failures:
    """What went wrong on which rank.

    Attributes:
        errors: text of the traceback by rank, the earliest first.
        lost: how a rank's process was lost, by rank ("was ended by signal 9 ...").
    """

    errors: dict[int, str] = field(default_factory=dict)
    lost: dict[int, str] = field(default_factory=dict)

    def __bool__(self) -> bool:
        return bool(self.errors or self.lost)

    @property
    def first_rank(self) -> int:
        """The rank to name: one whose process was lost, or else the first that raised."""
        return next(iter(self.lost or self.errors))

    def describe(self) -> str:
        """The message: lost ranks, then each different traceback with the ranks that raised it."""
        parts = [f"Rank {rank} {how}." for rank, how in self.lost.items()]
        if self.lost:
            # What the others then raised (a closed connection) is a consequence: its last line will do.
            parts += [f"Rank {rank} then failed: {_last_line(text)}" for rank, text in self.errors.items()]
            return "\n".join(parts)
        by_text: dict[str, list[int]] = {}
        for rank, text in self.errors.items():
            by_text.setdefault(plain(text), []).append(rank)
        parts += [f"{ranks_label(who)} failed:\n{text}" for text, who in by_text.items()]
        return "\n".join(parts) or "A rank failed without a message."


def ranks_label(who: list[int]) -> str:
    """ "Rank 1", "Ranks 0 and 1", "Ranks 0, 1 and 2"."""
    who = sorted(who)
    if len(who) == 1:
        return f"Rank {who[0]}"
    return "Ranks " + ", ".join(map(str, who[:-1])) + f" and {who[-1]}"


def plain(text: str) -> str:
    """A traceback without colours, and without what differs between ranks though the error is the same."""
    text = _ANSI.sub("", text).rstrip()
    return re.sub(r"(?<=/ipykernel_)\d+", "N", text)


def _last_line(text: str) -> str:
    lines = plain(text).splitlines()
    return lines[-1] if lines else "(no message)"
