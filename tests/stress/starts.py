"""Start the two-rank ten-step run again and again: no hang, no wrong loss.

    python tests/stress/starts.py [--count 40] [--deadline 120]

Starts take turns: a script under ``dskit run`` and a fresh group behind a notebook's session, with the
backends eager and inductor. Losses are held against a ZeRO-0 run: equal to the last bit with eager, within
1e-6 with inductor. Exit status 0 if every start ended well.
"""

import argparse
import json
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from dskit import ranks

HERE = Path(__file__).resolve().parent
ALLOWED = {"eager": 0.0, "inductor": 1e-6}
CELL = """
from dskit.experiments.training import RunSettings, make_engine, same_bits, shards, train
settings = RunSettings(mode=mode, backend=backend)
engine = make_engine(settings)
before = shards(engine, frozen=True)
result = {"losses": [row["loss"] for row in train(engine, settings)],
          "frozen_unchanged": same_bits(before, shards(engine, frozen=True))}
"""


def by_script(mode: str, backend: str, deadline: float) -> list[dict]:
    """A cold start: ``dskit run`` in processes of its own."""
    with tempfile.TemporaryDirectory() as folder:
        command = [sys.executable, "-m", "dskit", "run", "--device", "cpu", "--guard", "on",
                   str(HERE / "ten_steps.py"), folder, mode, backend]  # fmt: skip
        done = subprocess.run(command, timeout=deadline, capture_output=True, text=True)
        if done.returncode:
            raise RuntimeError(f"exit status {done.returncode}: {done.stderr[-2000:]}")
        return [json.loads((Path(folder) / f"rank-{rank}.json").read_text()) for rank in range(2)]


def by_notebook(mode: str, backend: str, deadline: float) -> list[dict]:
    """A warm start: a fresh group from this process's session."""
    group = ranks.start(2, "cpu", guard="on", backend=backend, mode=mode, start_deadline=deadline)
    group.run(CELL, deadline=deadline)
    return group.pull("result")


def problem(results: list[dict], baseline: list[dict], allowed: float) -> str:
    """What is wrong with a run, or nothing."""
    for rank, (result, expected) in enumerate(zip(results, baseline, strict=True)):
        if not result["frozen_unchanged"]:
            return f"rank {rank}: a frozen shard changed"
        pairs = list(zip(result["losses"], expected["losses"], strict=True))
        worst = max(abs(a - b) for a, b in pairs)
        if not worst <= allowed:  # so that a NaN counts as wrong
            return f"rank {rank}: a loss differs by {worst:g}, allowed {allowed:g}"
    return ""


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--count", type=int, default=40)
    parser.add_argument("--deadline", type=float, default=120.0, help="seconds for one start")
    options = parser.parse_args()
    baseline = by_script("zero0", "eager", options.deadline)
    kinds = [(start, backend) for backend in ALLOWED for start in (by_script, by_notebook)]
    failures, seconds = [], []
    for number in range(1, options.count + 1):
        start, backend = kinds[number % len(kinds)]
        began = time.monotonic()
        try:
            wrong = problem(start("deepcompile", backend, options.deadline), baseline, ALLOWED[backend])
        except Exception as error:
            wrong = f"{type(error).__name__}: {error}"
        seconds.append(time.monotonic() - began)
        print(
            f"{number}/{options.count} {start.__name__} {backend}: {wrong or 'ok'} ({seconds[-1]:.1f} s)",
            flush=True,
        )
        if wrong:
            failures.append(number)
    print(f"{options.count} starts, {len(failures)} failed {failures or ''}; "
          f"longest {max(seconds):.1f} s, total {sum(seconds):.0f} s")  # fmt: skip
    return 1 if failures else 0


if __name__ == "__main__":
    sys.exit(main())
