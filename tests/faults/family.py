"""Watch a run's processes and temporary files from outside."""

import contextlib
import os
import shutil
import tempfile
import time
from pathlib import Path

import psutil

# The bound on how long anything of a run may be left, in seconds.
LEFT_SECONDS = 15


class Watched:
    """A run in a temporary folder of its own, whose processes are remembered as they come.

    Attributes:
        folder: the run's TMPDIR; short, for sockets are made in it.
        environment: for the run.
    """

    def __init__(self):
        self.folder = Path(tempfile.mkdtemp(prefix="f-", dir="/tmp"))
        caches = self.folder.with_name(self.folder.name + "-cache")
        self.environment = os.environ | {"TMPDIR": str(self.folder), "TORCHINDUCTOR_CACHE_DIR": str(caches)}
        self._caches = caches
        self._seen: dict[int, psutil.Process] = {}

    def look(self, pid: int) -> list[psutil.Process]:
        """Remember a process and everything below it."""
        with contextlib.suppress(psutil.Error):
            root = psutil.Process(pid)
            for process in [root, *root.children(recursive=True)]:
                self._seen.setdefault(process.pid, process)
        return list(self._seen.values())

    def find(self, pid: int, word: str) -> psutil.Process:
        """The one process below ``pid`` whose command has a word."""
        found = []
        for process in self.look(pid):
            with contextlib.suppress(psutil.Error):
                if word in " ".join(process.cmdline()):
                    found.append(process)
        [process] = found
        return process

    def ranks(self, pid: int) -> dict[int, psutil.Process]:
        """The rank processes below ``pid``, by rank."""
        found = {}
        for process in self.look(pid):
            with contextlib.suppress(psutil.Error):
                command = " ".join(process.cmdline())
                forked = "dskit.ranks.warden" in command and process.ppid() in self._seen
                if forked and "dskit.ranks.warden" in " ".join(psutil.Process(process.ppid()).cmdline()):
                    found[_rank_of(process)] = process
                elif "dskit.ranks.script" in command:
                    found[int(process.environ()["RANK"])] = process
        return found

    def wait_for(self, condition, seconds: float, what: str):
        """Wait until ``condition()`` gives something true, and return it."""
        until = time.monotonic() + seconds
        while time.monotonic() < until:
            if value := condition():
                return value
            time.sleep(0.1)
        raise AssertionError(f"after {seconds} s: {what}")

    def assert_nothing_left(self, seconds: float = LEFT_SECONDS) -> float:
        """Fail if a process, a listening port or a file of the run is left; returns how long it took."""
        began = time.monotonic()
        _, alive = psutil.wait_procs(list(self._seen.values()), timeout=seconds)
        alive = [p for p in alive if p.is_running() and p.status() != psutil.STATUS_ZOMBIE]
        named = [f"{p.pid}: {' '.join(p.cmdline())[:120]}" for p in alive]
        assert not alive, f"left after {seconds} s: {named}"
        left = self.wait_gone(seconds - (time.monotonic() - began))
        assert not left, f"temporary files left: {left}"
        return time.monotonic() - began

    def wait_gone(self, seconds: float) -> list[str]:
        until = time.monotonic() + max(seconds, 1)
        while (left := [p.name for p in self.folder.iterdir()]) and time.monotonic() < until:
            time.sleep(0.1)
        return left

    def close(self) -> None:
        """End what is left, so that one failed test does not spoil the next."""
        for process in self._seen.values():
            with contextlib.suppress(psutil.Error):
                process.kill()
        shutil.rmtree(self.folder, ignore_errors=True)
        shutil.rmtree(self._caches, ignore_errors=True)


def _rank_of(process: psutil.Process) -> int:
    """A forked rank has its template's environment in /proc; its log of stacks says which rank it is."""
    for opened in process.open_files():
        name = Path(opened.path).name
        if name.startswith("stacks-"):
            return int(name.removeprefix("stacks-").removesuffix(".txt"))
    return -1
