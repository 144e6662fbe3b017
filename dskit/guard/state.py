"""What the guard found, as one value."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path


@dataclass(frozen=True)
class GuardState:
    """The lookup in the installed release, and what runs of it in this process.

    Attributes:
        release: DeepSpeed's version as its package states it. Nothing is decided by it: a source build can
            call itself 0.19.6 and lack the condition.
        file: path of the installed init_z3.py.
        line: 1-based line of the lookup, 0 where there is none to name.
        source: what the file has: "unguarded" (`if use_opt:`), "guarded" (`if use_opt and p.requires_grad:`),
            "unknown" (another shape, or no file to read) or "absent" (the release has no init_z3).
        switch: None while the source as installed is what runs, else "on" or "off".
        detail: one sentence on what else there is to know: why the shape is unknown, what is in the way.
        unconditional: the lookup stands under no `if` at all (0.16.6 and 0.17.0).
        foreign: the init_z3 that runs was put there by something else than this guard.
    """

    release: str
    file: Path
    line: int
    source: str
    switch: str | None
    detail: str = ""
    unconditional: bool = False
    foreign: bool = False

    @property
    def affected(self) -> bool | None:
        """True where what will run lacks the condition, so that a frozen parameter raises KeyError.

        None where the source cannot tell: its shape is unknown, or something else replaced init_z3.
        """
        if self.foreign:
            return None
        if self.switch is not None:
            return self.switch == "off"
        return self.unconditional or {"unguarded": True, "guarded": False, "absent": False}.get(self.source)
