"""Gathers and reduces between two ranks, and the operators: scripts/two_rank_checks.py, started once."""

import ast
import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

SCRIPT = Path(__file__).parent / "scripts" / "two_rank_checks.py"
CHECKS = [
    node.name
    for node in ast.parse(SCRIPT.read_text(encoding="utf-8")).body
    if isinstance(node, ast.FunctionDef) and node.name.startswith("check_")
]


@pytest.fixture(scope="module")
def results(tmp_path_factory, deepspeed_root):
    """What each rank says about each check: its traceback, or nothing."""
    folder = tmp_path_factory.mktemp("two-ranks")
    environment = os.environ | {"OMP_NUM_THREADS": "1", "CUDA_VISIBLE_DEVICES": ""}
    ranks = [
        subprocess.Popen(
            [sys.executable, SCRIPT, folder, str(rank), deepspeed_root], env=environment,
            stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True,
        )
        for rank in range(2)
    ]  # fmt: skip
    try:
        outputs = [rank.communicate(timeout=120)[0] for rank in ranks]
    finally:
        for rank in ranks:
            rank.kill()
    assert [rank.returncode for rank in ranks] == [0, 0], "\n".join(outputs)
    return [json.loads((folder / f"rank-{rank}.json").read_text()) for rank in range(2)]


@pytest.mark.parametrize("check", CHECKS)
def test_two_ranks(results, check):
    problems = [f"rank {rank}: {said[check]}" for rank, said in enumerate(results) if said[check]]
    assert not problems, "\n".join(problems)


def test_the_ranks_ran_every_check(results):
    assert len(CHECKS) >= 16
    for said in results:
        assert list(said) == CHECKS
