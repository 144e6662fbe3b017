"""The kernel's end of a warden: start it, give it commands, take its events."""

import atexit
import contextlib
import json
import queue
import shutil
import subprocess
import sys
import tempfile
import threading
import time
from pathlib import Path

from dskit.errors import DskitError
from dskit.ranks.family import describe_exit
from dskit.ranks.placement import Placement


class RanksError(DskitError, RuntimeError):
    """Ranks that could not be started, ended on their own, or overran a deadline."""


class Session:
    """One warden, with the controller and the ranks that it started.

    Args:
        placement: where the ranks run; the warden gets its environment.
        start_deadline: seconds until the warden must be ready (it imports torch and DeepSpeed).

    Raises:
        RanksError: the warden ended or was not ready in time.
    """

    def __init__(self, placement: Placement, start_deadline: float):
        import os

        self.placement = placement
        self.folder = Path(tempfile.mkdtemp(prefix="dskit-"))  # readable by this user alone
        self.exits: dict[int, int] = {}
        self.stopped: set[int] = set()
        self._next_engine = 0
        self._replies: queue.Queue = queue.Queue()
        self._process = subprocess.Popen(
            [sys.executable, "-m", "dskit.ranks.warden", "--folder", str(self.folder),
             "--accelerator", placement.accelerator, *_kernel_folder()],
            stdin=subprocess.PIPE, stdout=subprocess.PIPE, env=os.environ | placement.environment,
            start_new_session=True,  # Ctrl-C in a terminal goes to the kernel alone
        )  # fmt: skip
        threading.Thread(target=self._listen, daemon=True).start()
        atexit.register(self.close)
        self._expect("ready", start_deadline, "import torch and DeepSpeed")

    @property
    def connection_file(self) -> Path:
        """Where ipyparallel's controller says how a client reaches it."""
        return self.folder / "profile" / "security" / "ipcontroller-client.json"

    @property
    def alive(self) -> bool:
        """Whether the warden runs."""
        return self._process.poll() is None

    def new_engine_ids(self, count: int) -> list[int]:
        """Ids for ipyparallel's engines that no engine of this session had."""
        first, self._next_engine = self._next_engine, self._next_engine + count
        return list(range(first, self._next_engine))

    def fork(self, environments: list[dict[str, str]], deadline: float) -> list[int]:
        """Start ranks with these variables; returns their process ids.

        Raises:
            RanksError: the warden refused or did not answer in time.
        """
        self._command(do="fork", ranks=environments)
        return self._expect("forked", deadline, "start ranks")["pids"]

    def kill(self, pids: list[int], deadline: float = 5.0) -> None:
        """End ranks and wait until they are gone."""
        self._command(do="kill", pids=pids)
        until = time.monotonic() + deadline
        while time.monotonic() < until and self.alive and not all(pid in self.exits for pid in pids):
            time.sleep(0.02)

    def fate(self, pid: int) -> str:
        """How a rank's process was lost ("was ended by signal 9 ..."), or nothing while it runs."""
        if pid in self.exits:
            return describe_exit(self.exits[pid])
        if pid in self.stopped:
            return "was stopped by a signal (SIGSTOP) and did not go on"
        return "" if self.alive else "was ended with its warden process"

    def stacks(self, pids: list[int]) -> None:
        """Ask ranks to write their Python stacks into their files."""
        self._command(do="stacks", pids=pids)

    def close(self) -> None:
        """End everything; safe to call twice."""
        atexit.unregister(self.close)
        with contextlib.suppress(OSError, ValueError):
            self._process.stdin.write(b'{"do": "end"}\n')
            self._process.stdin.close()
        try:
            self._process.wait(timeout=10)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()
        shutil.rmtree(self.folder, ignore_errors=True)

    def _command(self, **command) -> None:
        try:
            self._process.stdin.write(json.dumps(command).encode() + b"\n")
            self._process.stdin.flush()
        except (OSError, ValueError) as error:
            raise self._gone("the warden process ended") from error

    def _listen(self) -> None:
        for line in self._process.stdout:
            event = json.loads(line)
            if event["event"] == "exit":
                self.exits[event["pid"]] = event["status"]
            elif event["event"] == "stopped":
                self.stopped.add(event["pid"])
            else:
                self._replies.put(event)
        self._replies.put({"event": "gone"})

    def _expect(self, event: str, deadline: float, purpose: str) -> dict:
        try:
            reply = self._replies.get(timeout=deadline)
        except queue.Empty:
            log = self.last_words()
            self.close()
            raise RanksError(
                "The ranks were not started in time.",
                f"The process that was to {purpose} had not answered after {deadline:g} s. {log}".strip(),
                "Give start_deadline more seconds, or look at the machine's load.",
            ) from None
        if reply["event"] == event:
            return reply
        raise self._gone(reply.get("text", "the warden process ended"))

    def _gone(self, what: str) -> RanksError:
        log = self.last_words()
        self.close()
        return RanksError(
            "The ranks could not be started.", f"Found: {what}. {log}".strip(), "Run: dskit doctor"
        )

    def last_words(self) -> str:
        """The end of what the warden and the ranks wrote outside of cells, or nothing."""
        with contextlib.suppress(OSError):
            lines = (self.folder / "warden.log").read_text(errors="replace").strip().splitlines()
            if lines:
                return "Its last words: " + " / ".join(lines[-3:])
        return ""


def _kernel_folder() -> list[str]:
    """The warden's option for the folder in which ``dskit notebooks`` keeps this kernel's sockets, if it did.

    Nobody else would remove it if that command and the kernel are both ended with SIGKILL.
    """
    try:
        from ipykernel.connect import get_connection_file

        folder = Path(get_connection_file()).parent
    except Exception:  # not in a kernel, or one without a connection file
        return []
    return ["--kernel-folder", str(folder)] if folder.name.startswith("dskit-") else []
