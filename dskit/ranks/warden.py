"""The process between a notebook and its ranks: it starts them, and no rank outlives it or the notebook.

The kernel starts one warden for each session and talks to it over pipes, a JSON object a line. The warden
starts ipyparallel's controller, imports torch and DeepSpeed once, and forks ranks from itself, so that a
fresh group of ranks costs no second import and shares memory. When its standard input closes, because the
kernel ended in whatever way, it ends everything that it started and removes the session's folder.

Commands: ``{"do": "fork", "ranks": [{variable: value}, ...]}``, ``{"do": "kill", "pids": [...]}``,
``{"do": "stacks", "pids": [...]}``, ``{"do": "end"}``. Events: ``{"event": "ready"}``,
``{"event": "forked", "pids": [...]}``,
``{"event": "exit", "pid": n, "status": n}``, ``{"event": "stopped", "pid": n}``, ``{"event": "error",
"text": "..."}``.
"""

import argparse
import contextlib
import json
import os
import select
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path

import psutil

from dskit.ranks import family

_POLL_SECONDS = 0.1

# A rank that a signal stopped for this long counts as lost: its peers wait for it in a collective.
_STOPPED_SECONDS = 3.0


def main(argv: list[str]) -> None:
    """Serve one session until its kernel is gone."""
    parser = argparse.ArgumentParser(prog="dskit.ranks.warden")
    parser.add_argument("--folder", type=Path, required=True, help="session folder, removed at the end")
    parser.add_argument("--kernel-folder", type=Path, help="removed too if the kernel dies without a word")
    parser.add_argument("--accelerator", choices=("cpu", "cuda"), required=True)
    options = parser.parse_args(argv)
    warden = Warden(options.folder, options.accelerator)
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(0))
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C is the kernel's to handle
    try:
        warden.serve()
    finally:
        if os.getpid() == warden.pid:  # not in a forked rank
            warden.end()
            if options.kernel_folder and not warden.told_to_end:
                shutil.rmtree(options.kernel_folder, ignore_errors=True)


class Warden:
    """State of one session.

    Args:
        folder: the session's folder, readable by this user alone.
        accelerator: "cpu" or "cuda"; with "cpu" ranks are forked, with "cuda" started afresh, since a
            process that touched CUDA cannot be forked.
    """

    def __init__(self, folder: Path, accelerator: str):
        self.pid = os.getpid()
        self.folder = folder
        self.accelerator = accelerator
        self.events = os.dup(1)  # standard output itself goes to a log, so that a print breaks no event
        self.told_to_end = False
        self.children: set[int] = set()
        self.stopped_since: dict[int, float] = {}
        log = os.open(folder / "warden.log", os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)
        os.dup2(log, 1)
        os.dup2(log, 2)

    def serve(self) -> None:
        """Start the controller, import what ranks need, then follow commands until the pipe closes."""
        family.adopt_orphans()
        self._start_controller()
        if self._forks():
            self._preload()
        self._send(event="ready")
        pending = b""
        while True:
            readable, _, _ = select.select([0], [], [], _POLL_SECONDS)
            if readable:
                received = os.read(0, 65536)
                if not received:
                    return
                *lines, pending = (pending + received).split(b"\n")
                for line in lines:
                    self._follow(json.loads(line))
                if self.told_to_end:
                    return
            self._reap()
            self._watch_for_stops()

    def end(self) -> None:
        """End every process that this warden started, and remove the session's folder."""
        family.end_descendants()
        shutil.rmtree(self.folder, ignore_errors=True)

    # ---- commands -------------------------------------------------------------------------------------

    def _follow(self, command: dict) -> None:
        try:
            if command["do"] == "fork":
                self._send(event="forked", pids=[self._start_rank(env) for env in command["ranks"]])
            elif command["do"] == "kill":
                self._kill(command["pids"])
            elif command["do"] == "end":
                self.told_to_end = True
            elif command["do"] == "stacks":
                for pid in self._own(command["pids"]):
                    os.kill(pid, signal.SIGUSR1)
        except Exception as error:
            self._send(event="error", text=f"{type(error).__name__}: {error}")

    def _start_rank(self, environment: dict[str, str]) -> int:
        if not self._forks():
            command = [sys.executable, "-m", "dskit.ranks.engine", str(self.folder), self.accelerator]
            child = subprocess.Popen(
                command, env=os.environ | environment, stdin=subprocess.DEVNULL, process_group=0
            )
            self.children.add(child.pid)
            return child.pid
        check_forkable()
        pid = os.fork()
        if pid == 0:
            self._become_rank(environment)
        with contextlib.suppress(OSError):  # the child does the same; whichever comes first
            os.setpgid(pid, pid)
        self.children.add(pid)
        return pid

    def _become_rank(self, environment: dict[str, str]) -> None:
        try:
            os.setpgid(0, 0)
            os.close(self.events)
            null = os.open(os.devnull, os.O_RDONLY)
            os.dup2(null, 0)
            os.environ.update(environment)
            from dskit.ranks import engine

            engine.run(self.folder, self.accelerator)
        except SystemExit as leaving:
            os._exit(leaving.code if isinstance(leaving.code, int) else 1)
        except BaseException:
            import traceback

            traceback.print_exc()
            os._exit(1)
        os._exit(0)

    def _kill(self, pids: list[int]) -> None:
        for pid in self._own(pids):
            # The whole process group: a rank may be compiling, with a compiler as its child.
            with contextlib.suppress(ProcessLookupError, PermissionError):
                os.killpg(pid, signal.SIGKILL)

    def _own(self, pids: list[int]) -> list[int]:
        return [pid for pid in pids if pid in self.children]

    # ---- children -------------------------------------------------------------------------------------

    def _start_controller(self) -> None:
        command = [
            sys.executable, "-m", "dskit.ranks.controller", f"--profile-dir={self.folder / 'profile'}",
            "--ip=127.0.0.1", "--location=127.0.0.1", "--IPController.use_threads=True", "--log-level=ERROR",
            # An engine counts as there after its first heartbeat, so a slow heart makes a slow start.
            # Whether a rank lives, the warden knows better: it is the parent.
            "--HeartMonitor.period=250", "--HeartMonitor.max_heartmonitor_misses=100000",
        ]  # fmt: skip
        child = subprocess.Popen(command, stdin=subprocess.DEVNULL, process_group=0)
        self.children.add(child.pid)

    def _reap(self) -> None:
        ended = family.reap()
        for pid, status in ended.items():
            if pid in self.children:
                self.children.discard(pid)
                self._send(event="exit", pid=pid, status=status)
        if ended:
            self._end_orphans()

    def _end_orphans(self) -> None:
        """End what a rank that ended had started itself: this process is its parent now."""
        for process in psutil.Process().children():
            if process.pid not in self.children:
                with contextlib.suppress(psutil.Error):
                    process.kill()

    def _watch_for_stops(self) -> None:
        now = time.monotonic()
        for pid in self.children:
            if not family.is_stopped(pid):
                self.stopped_since.pop(pid, None)
            elif now - self.stopped_since.setdefault(pid, now) > _STOPPED_SECONDS:
                self.stopped_since[pid] = float("inf")  # said once
                self._send(event="stopped", pid=pid)

    def _forks(self) -> bool:
        return self.accelerator == "cpu" and sys.platform.startswith("linux")

    def _preload(self) -> None:
        import torch  # noqa: F401

        with contextlib.suppress(ImportError):
            import ipyparallel.engine.app  # noqa: F401
        import deepspeed  # noqa: F401

    def _send(self, **event) -> None:
        with contextlib.suppress(BrokenPipeError):
            os.write(self.events, json.dumps(event).encode() + b"\n")


def check_forkable() -> None:
    """Raise a RuntimeError unless a child of this process would be sound.

    A thread does not survive a fork but its locks do, a socket would be shared, and CUDA refuses to work.
    """
    threads = len(os.listdir("/proc/self/task"))  # noqa: PTH208
    if threads != 1:
        raise RuntimeError(f"ranks cannot be forked: the template process has {threads} threads")
    for descriptor in os.listdir("/proc/self/fd"):  # noqa: PTH208
        with contextlib.suppress(OSError):
            if os.readlink(f"/proc/self/fd/{descriptor}").startswith("socket:"):  # noqa: PTH115
                raise RuntimeError("ranks cannot be forked: the template process holds a socket")
    import torch

    if torch.cuda.is_initialized():
        raise RuntimeError("ranks cannot be forked: the template process has touched CUDA")


if __name__ == "__main__":
    main(sys.argv[1:])
