"""The Makefile, run dry in a copy: what would be done, and when."""

import os
import re
import shutil
import subprocess
import time
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]


@pytest.fixture
def checkout(tmp_path):
    for name in ("Makefile", "pyproject.toml", "constraints.txt"):
        shutil.copy(ROOT / name, tmp_path)
    return tmp_path


def make(checkout: Path, *arguments: str) -> str:
    """What make prints, with nothing of a make around this suite."""
    ours = ("MAKE", "MFLAGS", "PYTHON", "TORCH_INDEX", "OUT", "LAB_ARGS")
    environment = {name: value for name, value in os.environ.items() if not name.startswith(ours)}
    command = ["make", "--no-print-directory", *arguments]
    done = subprocess.run(command, cwd=checkout, env=environment, capture_output=True, text=True, check=True)
    return done.stdout


def dry(checkout: Path, *arguments: str) -> list[str]:
    """The commands that make would run."""
    return make(checkout, "--dry-run", *arguments).splitlines()


def pip_installs(commands: list[str]) -> list[str]:
    return [
        re.sub(r".* install +", "", " ".join(command.split()))
        for command in commands
        if " -m pip " in command
    ]


def installed(checkout: Path, stamp: str) -> None:
    (checkout / ".venv" / "bin").mkdir(parents=True, exist_ok=True)
    (checkout / ".venv" / "bin" / "pip").touch()
    (checkout / ".venv" / stamp).touch()


def test_workshop_installs_torch_first_then_the_rest_then_runs(checkout):
    commands = dry(checkout, "workshop")
    assert commands[0] == "python3 -m venv .venv"
    assert pip_installs(commands) == ["--no-deps torch==2.13.0", "-c constraints.txt -e '.[workshop]'"]
    assert commands[-1].endswith(".venv/bin/dskit notebooks --out out")


def test_torch_index_is_for_torch_alone(checkout):
    commands = dry(checkout, "workshop", "TORCH_INDEX=file:///cpu")
    assert pip_installs(commands) == [
        "--no-deps --index-url file:///cpu torch==2.13.0",
        "-c constraints.txt -e '.[workshop]'",
    ]


def test_test_brings_its_own_set_up(checkout):
    commands = dry(checkout, "test")
    assert pip_installs(commands)[-1] == "-c constraints.txt -e '.[workshop,dev]'"
    assert commands[-1].endswith(".venv/bin/pytest")


@pytest.mark.parametrize(
    ("target", "stamp"), [("workshop", ".installed-workshop"), ("test", ".installed-dev")]
)
def test_the_second_time_nothing_is_installed(checkout, target, stamp):
    installed(checkout, stamp)
    assert len(dry(checkout, target)) == 1
    for source in ("pyproject.toml", "constraints.txt"):
        later = time.time() + 10
        os.utime(checkout / source, (later, later))
        assert len(pip_installs(dry(checkout, target))) == 2
        os.utime(checkout / source, (0, 0))


def test_an_environment_without_pip_is_made_again(checkout):
    (checkout / ".venv" / "bin").mkdir(parents=True)
    (checkout / ".venv" / "bin" / "python").touch()
    assert dry(checkout, "lab")[0] == "python3 -m venv .venv"


def test_ci_runs_the_readmes_test_command():
    commands = [line for line in (ROOT / ".ci/run").read_text().splitlines() if line and line[0] != "#"]
    assert commands[-1] == "make test"
    readme = (ROOT / "README.md").read_text()
    assert "make test" in readme and "make workshop" in readme


def test_every_target_is_in_the_help(checkout):
    named = set(re.findall(r"^make ([a-z-]+)", make(checkout), re.MULTILINE))
    phony = re.search(r"^\.PHONY: (.*)", (ROOT / "Makefile").read_text(), re.MULTILINE)[1].split()
    assert named == set(phony) - {"help"}
