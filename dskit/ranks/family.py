"""Processes that belong together: none of a run is left when the run ends, in whatever way it ends.

Two things that Linux offers make that sure. A process can ask to be ended with its parent, and a process
can ask to become the parent of every descendant whose own parent ended, so that none gets out of sight.
"""

import contextlib
import ctypes
import os
import signal
import sys
import time

import psutil

_PR_SET_PDEATHSIG = 1
_PR_SET_CHILD_SUBREAPER = 36


def end_with_parent() -> None:
    """Ask Linux to end this process when its parent ends."""
    _prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)


def adopt_orphans() -> None:
    """Ask Linux to make this process the parent of descendants whose own parent ended."""
    _prctl(_PR_SET_CHILD_SUBREAPER, 1)


def end_descendants(seconds: float = 5.0) -> None:
    """End every descendant of this process and wait until they are gone, for at most ``seconds``."""
    until = time.monotonic() + seconds
    while time.monotonic() < until:
        left = psutil.Process().children(recursive=True)
        if not left:
            return
        for process in left:
            with contextlib.suppress(psutil.Error):
                process.kill()
        reap()
        time.sleep(0.02)


def reap() -> dict[int, int]:
    """Collect children that ended: process id to exit status, negative for a signal."""
    ended = {}
    with contextlib.suppress(ChildProcessError):
        while True:
            pid, status = os.waitpid(-1, os.WNOHANG)
            if not pid:
                break
            ended[pid] = os.waitstatus_to_exitcode(status)
    return ended


def is_stopped(pid: int) -> bool:
    """Whether a process was stopped by a signal (SIGSTOP), so that it runs no more."""
    with contextlib.suppress(psutil.Error):
        return psutil.Process(pid).status() == psutil.STATUS_STOPPED
    return False


def describe_exit(status: int) -> str:
    """How a rank ended, from its exit status: "exited with status 3", "was ended by signal 9 (...)"."""
    if status >= 0:
        return f"exited with status {status}"
    with contextlib.suppress(ValueError):
        name = signal.Signals(-status).name
        hint = "; the usual cause is that memory ran out" if name == "SIGKILL" else ""
        return f"was ended by signal {-status} ({name}{hint})"
    return f"was ended by signal {-status}"


def _prctl(option: int, value: int) -> None:
    if sys.platform.startswith("linux"):
        ctypes.CDLL(None, use_errno=True).prctl(option, value)
