"""How much memory a notebook takes with everything it starts, as Binder's limit counts it."""

import os
import threading

import psutil

_INTERVAL_SECONDS = 0.25


class PeakMemory:
    """Samples the memory of this process and all below it while a block runs.

    The sum is of proportional set sizes (PSS): a page that several processes share is counted once, split
    among them. Without PSS (not on Linux) it is the sum of unique set sizes, which leaves shared pages out.

    Attributes:
        bytes: the largest sum so far.
        processes: the number of processes at that moment.
    """

    def __init__(self):
        self.bytes = 0
        self.processes = 0
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._watch, daemon=True)

    def __enter__(self) -> "PeakMemory":
        self._thread.start()
        return self

    def __exit__(self, *_) -> None:
        self._stop.set()
        self._thread.join()

    def __str__(self) -> str:
        return f"{self.bytes / 1e9:.2f} GB in {self.processes} processes"

    def _watch(self) -> None:
        while not self._stop.wait(_INTERVAL_SECONDS):
            total, count = tree_memory(os.getpid())
            if total > self.bytes:
                self.bytes, self.processes = total, count


def tree_memory(pid: int) -> tuple[int, int]:
    """Memory of a process and all its descendants, in bytes, and how many they are."""
    total = count = 0
    for process in [psutil.Process(pid), *psutil.Process(pid).children(recursive=True)]:
        try:
            memory = process.memory_full_info()
        except (psutil.NoSuchProcess, psutil.AccessDenied):
            continue  # it ended between the listing and the reading
        total += getattr(memory, "pss", memory.uss)
        count += 1
    return total, count
