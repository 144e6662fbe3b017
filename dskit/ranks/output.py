"""What ranks print, shown while they run: labelled by rank, and once where all ranks print the same."""

import sys
import time

# A line waits this long for the other ranks to print the same, in seconds.
_MERGE_SECONDS = 0.5


class OutputPrinter:
    """Prints the growing output of one cell on several ranks.

    Args:
        ranks: number of ranks.
    """

    def __init__(self, ranks: int):
        self.ranks = ranks
        self._streams = {name: _Stream(ranks, target) for name, target in _targets().items()}

    def update(self, stdout: list[str], stderr: list[str]) -> None:
        """Take each rank's output so far, and print what can be printed."""
        for name, texts in (("stdout", stdout), ("stderr", stderr)):
            self._streams[name].update(texts)

    def finish(self, outputs: list[list[dict]]) -> None:
        """Print what is left, then show rich outputs (figures, tables) by rank."""
        for stream in self._streams.values():
            stream.flush()
        for rank, rank_outputs in enumerate(outputs or []):
            for output in rank_outputs:
                _display(rank, output)


class _Stream:
    def __init__(self, ranks: int, target):
        self.target = target
        self.taken = [0] * ranks
        self.partial = [""] * ranks
        self.lines: list[list[tuple[float, str]]] = [[] for _ in range(ranks)]

    def update(self, texts: list[str]) -> None:
        now = time.monotonic()
        for rank, text in enumerate(texts):
            new = self.partial[rank] + text[self.taken[rank] :]
            self.taken[rank] = len(text)
            *complete, self.partial[rank] = new.split("\n")
            self.lines[rank].extend((now, line) for line in complete)
        self._emit(now - _MERGE_SECONDS)

    def flush(self) -> None:
        for rank, rest in enumerate(self.partial):
            if rest:
                self.lines[rank].append((0.0, rest))
        self.partial = [""] * len(self.partial)
        self._emit(float("inf"))

    def _emit(self, before: float) -> None:
        while any(self.lines):
            heads = [queue[0] if queue else None for queue in self.lines]
            if all(heads) and len({line for _, line in heads}) == 1:
                self._write("all ranks" if len(heads) > 1 else "rank 0", heads[0][1])
                for queue in self.lines:
                    queue.pop(0)
                continue
            ripe = [rank for rank, head in enumerate(heads) if head and (head[0] <= before or all(heads))]
            if not ripe:
                return
            for rank in ripe:
                self._write(f"rank {rank}", self.lines[rank].pop(0)[1])

    def _write(self, label: str, line: str) -> None:
        if line:
            print(f"[{label}] {line}", file=self.target, flush=True)


def _targets() -> dict:
    return {"stdout": sys.stdout, "stderr": sys.stderr}


def _display(rank: int, output: dict) -> None:
    from IPython.display import display

    print(f"[rank {rank}]", flush=True)
    display(output["data"], raw=True, metadata=output.get("metadata"))
