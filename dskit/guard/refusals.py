"""What the guard says when it will not switch. Nothing has been changed when one of these is raised."""

from __future__ import annotations

from typing import TYPE_CHECKING

from dskit.errors import DskitError

if TYPE_CHECKING:
    from dskit.guard.installed import Installed


class GuardError(DskitError):
    """The guard refuses, and has changed nothing."""


def require_switchable(installed: Installed) -> None:
    """Check that the condition can be switched in this source, and that it is all that is needed.

    Raises:
        GuardError: it is not; the message names the file, the release and the way out.
    """
    if installed.source == "absent":
        raise _absent(installed)
    if installed.text is None:
        raise _no_source(installed)
    if installed.lookup.shape == "unknown":
        raise _unknown_shape(installed)
    if not installed.skips_none_grads:
        raise _no_none_grad_skip(installed)
    if installed.lookup.shape == "unconditional":
        raise _unconditional(installed)


def foreign(installed: Installed, where: str, what: str) -> GuardError:
    """The refusal for a running init_z3 that was not compiled from the source file."""
    return GuardError(
        f"DeepSpeed {installed.release}: the init_z3 that runs is not the one in its source file; "
        "it was left as it is.",
        f"{where}.init_z3 is {what}, which does not match {installed.file}.",
        "Something replaced it, or the file was changed after the import. Remove the other patch, or start a "
        "fresh process, and switch again.",
    )


def _absent(installed: Installed) -> GuardError:
    return GuardError(
        f"DeepSpeed {installed.release} has no DeepCompile for ZeRO-3, so there is no lookup to switch.",
        f"{installed.file} does not exist.",
        "init_z3 came with 0.16.6, and the guard works from 0.18.0 on: pip install 'deepspeed>=0.18.0'",
    )


def _no_source(installed: Installed) -> GuardError:
    return GuardError(
        f"DeepSpeed {installed.release} is installed without the source of its init_z3.",
        f"{installed.file}: {installed.lookup.reason}.",
        "The guard edits the syntax tree of that file. Install DeepSpeed as plain files (no zip archive, no "
        "compiled-only copy): pip install --force-reinstall --no-deps deepspeed",
    )


def _unknown_shape(installed: Installed) -> GuardError:
    line = f", line {installed.lookup.line}" if installed.lookup.line else ""
    return GuardError(
        f"DeepSpeed {installed.release} has an init_z3 of a shape that the guard does not know; "
        "nothing was changed.",
        f"{installed.file}{line}: {installed.lookup.reason}.",
        "If the file was edited, reinstall the release. If the release is new, the guard has to learn its "
        "shape: it knows those of 0.18.0 to 0.19.8.",
    )


def _no_none_grad_skip(installed: Installed) -> GuardError:
    lookup = installed.lookup
    condition = (
        "no condition at all" if lookup.shape == "unconditional" else f"a condition on `{lookup.flag}`"
    )
    return GuardError(
        f"DeepSpeed {installed.release} cannot be repaired by the condition alone; nothing was changed.",
        f"{installed.file}, line {lookup.line}: the lookup has {condition}. {installed.reduce_pass}: "
        "add_gather_and_reduce lacks the None-grad skip, so it adds a reduce for a frozen parameter too.",
        "0.18.0 is the first release that has the skip: pip install 'deepspeed>=0.18.0'",
    )


def _unconditional(installed: Installed) -> GuardError:
    return GuardError(
        f"DeepSpeed {installed.release} looks the map up on no condition at all; nothing was changed.",
        f"{installed.file}, line {installed.lookup.line}: there is no `if` to edit.",
        "The guard works from 0.18.0 on: pip install 'deepspeed>=0.18.0'",
    )
