"""The process between ``dskit run`` and its ranks: it runs torchrun, watches the ranks and cleans up.

``dskit run`` starts it as ``python -m dskit.ranks.supervisor FOLDER PIPE RANKS ACCELERATOR GUARD BACKEND
SCRIPT [ARGS]...``. FOLDER is the run's own, PIPE a file descriptor that closes when ``dskit run`` ends in
whatever way; then this process ends everything that it started. It adds to torchrun what torchrun leaves
open: a rank that was stopped or that lingers, and one report of who failed first.
"""

import contextlib
import json
import logging
import os
import shutil
import signal
import sys
import threading
import time
from dataclasses import dataclass
from pathlib import Path

import psutil

from dskit.ranks import family
from dskit.ranks.failures import Failures

_POLL_SECONDS = 0.2

# A rank that a signal stopped for this long counts as lost.
_STOPPED_SECONDS = 3.0

# A rank that sees a peer's connection break fails within this time, looks in between included.
_REACTION_SECONDS = 1.0

# When a rank failed, torchrun asks the others to leave; after this long they are ended.
_LINGER_SECONDS = 5.0


def main(argv: list[str]) -> int:
    """Run the script under torchrun; returns the exit status."""
    folder, pipe, ranks, accelerator, *rank_args = argv
    family.adopt_orphans()
    watch = Watch(Path(folder), int(ranks))
    threading.Thread(target=_end_with_front, args=(int(pipe), Path(folder)), daemon=True).start()
    threading.Thread(target=watch.follow, daemon=True).start()
    try:
        return _torchrun(watch, int(ranks), [folder, accelerator, *rank_args])
    finally:
        watch.over.set()
        family.end_descendants()


def _torchrun(watch: "Watch", ranks: int, rank_args: list[str]) -> int:
    from torch.distributed import run
    from torch.distributed.elastic.agent.server.api import SignalException
    from torch.distributed.elastic.multiprocessing.errors import ChildFailedError

    # What it says of failures is said better below, once and by rank.
    logging.getLogger("torch.distributed.elastic").setLevel(logging.CRITICAL)
    log_dir = f"--log-dir={rank_args[0]}"  # or torchrun leaves a folder of its own behind
    options = ["--standalone", f"--nproc-per-node={ranks}", log_dir, "--module", "dskit.ranks.script"]
    try:
        run.run(run.parse_args([*options, *rank_args]))
    except ChildFailedError as error:
        exits = {rank: failure.exitcode for rank, failure in error.failures.items()}
        return watch.report(exits, error.get_first_failure()[0])
    except (SignalException, KeyboardInterrupt) as stopped:
        number = int(getattr(stopped, "sigval", signal.SIGINT))
        print(f"dskit: stopped by signal {number}; the ranks were ended.", file=sys.stderr)
        return 128 + number
    return 0


def _end_with_front(pipe: int, folder: Path) -> None:
    with contextlib.suppress(OSError):
        while os.read(pipe, 1):
            pass
    family.end_descendants()
    shutil.rmtree(folder, ignore_errors=True)
    os._exit(1)


@dataclass
class Watch:
    """What is known of the ranks of a run while it runs.

    Args:
        folder: where ranks leave what they have to say when they fail (``dskit.ranks.script.rank_word``).
        ranks: how many there are.
    """

    folder: Path
    ranks: int

    def __post_init__(self):
        self.over = threading.Event()
        self.lost: dict[int, str] = {}
        self.pids: dict[int, int] = {}
        self._ended: set[int] = set()  # by this process
        self._gone: dict[int, float] = {}  # when a rank's process ended, seconds since 1970
        self._stopped_since: dict[int, float] = {}
        self._failed_since: float | None = None

    def follow(self) -> None:
        """Watch the ranks until the run is over."""
        while not self.over.wait(_POLL_SECONDS):
            with contextlib.suppress(psutil.Error):
                self._find_ranks()
            self._watch_for_stops()
            self._watch_for_lingerers()

    def report(self, exits: dict[int, int], first: int) -> int:
        """Say on standard error who failed and how; returns the exit status of the run.

        Args:
            exits: exit status by rank of those that failed, negative for a signal.
            first: the rank that torchrun saw fail first.
        """
        words = self.words()
        errors = {rank: word["text"] for rank, word in words.items() if word["text"]}
        began = min((words[rank]["time"] for rank in errors), default=float("inf"))
        for rank in range(self.ranks):
            self._take_departure(rank, words.get(rank), exits.get(rank, 0), began)
        failures = Failures(errors, self.lost)
        if failures:
            print(failures.describe(), file=sys.stderr)
            first = failures.first_rank
        status = words[first]["status"] if first in words else exits.get(first, 1)
        how = self.lost.get(first) or family.describe_exit(status)
        others = "; the other ranks were stopped" if self.ranks > 1 else ""
        print(f"dskit: rank {first} {how}{others}.", file=sys.stderr)
        return 128 - status if status < 0 else status or 1

    def _take_departure(self, rank: int, word: dict | None, status: int, began: float) -> None:
        """Count a rank as lost if it left without an error of its own, before any other rank had one.

        Args:
            rank: the rank.
            word: what it left behind, or None.
            status: its exit status as torchrun saw it.
            began: when the first error was, in seconds since 1970.
        """
        if word is None:
            # Nothing is taken down after a signal or an os._exit: the peers' connections break at once.
            left_at = self._gone.get(rank, float("inf")) - _REACTION_SECONDS
        else:
            left_at, status = word["time"], word["status"]
        silent = not (word and word["text"]) and rank not in self._ended
        at_fault = status != 0 or began < float("inf")  # one that came to its end is no loss if all did
        if silent and at_fault and left_at < began:
            self.lost.setdefault(rank, family.describe_exit(status))

    def words(self) -> dict[int, dict]:
        """What ranks left behind when they ended, the earliest first."""
        words = []
        for path in self.folder.glob("ended-*.json"):
            with contextlib.suppress(OSError, ValueError):
                words.append(json.loads(path.read_text(encoding="utf-8")))
        return {word["rank"]: word for word in sorted(words, key=lambda word: word["time"])}

    def _find_ranks(self) -> None:
        for process in psutil.Process().children():
            if process.pid not in self.pids.values():
                with contextlib.suppress(psutil.Error):
                    variables = process.environ()
                    if "RANK" in variables and "TORCHELASTIC_RUN_ID" in variables:
                        self.pids[int(variables["RANK"])] = process.pid
        for rank, pid in self.pids.items():
            if rank not in self._gone and not _runs(pid):
                self._gone[rank] = time.time()

    def _watch_for_stops(self) -> None:
        now = time.monotonic()
        for rank, pid in self.pids.items():
            if not family.is_stopped(pid):
                self._stopped_since.pop(rank, None)
            elif now - self._stopped_since.setdefault(rank, now) > _STOPPED_SECONDS:
                self.lost[rank] = "was stopped by a signal (SIGSTOP) and did not go on"
                self._end(rank)

    def _watch_for_lingerers(self) -> None:
        gone = [rank for rank, pid in self.pids.items() if not _runs(pid)]
        if len(gone) == self.ranks or not (
            self.lost or any(word["status"] for word in self.words().values())
        ):
            return
        now = time.monotonic()
        self._failed_since = self._failed_since or now
        if now - self._failed_since > _LINGER_SECONDS:
            for rank in self.pids:
                self._end(rank)

    def _end(self, rank: int) -> None:
        self._ended.add(rank)
        with contextlib.suppress(psutil.Error):
            psutil.Process(self.pids[rank]).kill()


def _runs(pid: int) -> bool:
    with contextlib.suppress(psutil.Error):
        return psutil.Process(pid).status() != psutil.STATUS_ZOMBIE
    return False


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
