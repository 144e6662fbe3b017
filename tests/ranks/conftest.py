"""Helpers for tests that start rank processes."""

import subprocess
import sys
from pathlib import Path

import pytest

REPOSITORY = Path(__file__).resolve().parents[2]


@pytest.fixture(scope="session")
def dskit_run():
    """Run ``dskit run`` as a person would; returns the finished process with its output as text."""

    def run(*arguments, env=None, cwd=REPOSITORY, timeout=120):
        command = [sys.executable, "-m", "dskit", "run", *map(str, arguments)]
        return subprocess.run(command, env=env, cwd=cwd, timeout=timeout, capture_output=True, text=True)

    return run
