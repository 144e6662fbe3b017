"""The pins, and the files that have to agree on them."""

import re
import sys
from importlib import metadata
from pathlib import Path

import pytest
import tomllib
import yaml
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name
from packaging.version import Version

ROOT = Path(__file__).resolve().parents[2]
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
EXTRAS = PROJECT["optional-dependencies"]


def pins() -> dict[str, Version]:
    lines = (ROOT / "constraints.txt").read_text().splitlines()
    found = {}
    for line in lines:
        if line and not line.startswith("#"):
            name, equals, version = line.partition("==")
            assert equals and canonicalize_name(name) not in found, line
            found[canonicalize_name(name)] = Version(version)
    return found


def environment(path: str) -> tuple[dict, list[str]]:
    """An environment file: its conda part, and the lines of its pip section."""
    content = yaml.safe_load((ROOT / path).read_text())
    pip = [entry["pip"] for entry in content["dependencies"] if isinstance(entry, dict)]
    content["dependencies"] = [entry for entry in content["dependencies"] if isinstance(entry, str)]
    assert len(pip) == 1
    return content, pip[0]


def installed_closure(requirements: list[str]) -> set[str]:
    """Names of all that the requirements bring in here, and what those bring in."""
    seen, open_ = set(), [Requirement(requirement) for requirement in requirements]
    while open_:
        requirement = open_.pop()
        key = (canonicalize_name(requirement.name), frozenset(requirement.extras))
        if key in seen:
            continue
        seen.add(key)
        for line in metadata.requires(requirement.name) or []:
            needed = Requirement(line)
            extras = requirement.extras or {""}
            if needed.marker is None or any(needed.marker.evaluate({"extra": extra}) for extra in extras):
                open_.append(needed)
    return {name for name, _ in seen}


@pytest.mark.parametrize("extra", [None, "workshop", "dev"])
def test_pins_cover_and_fit_every_requirement(extra):
    pinned = pins()
    for line in EXTRAS[extra] if extra else PROJECT["dependencies"]:
        requirement = Requirement(line)
        assert requirement.specifier.contains(pinned[canonicalize_name(requirement.name)]), line


def test_pins_cover_what_the_requirements_bring_in():
    # CUDA builds of torch bring libraries that torch itself pins.
    of_torch = re.compile(r"nvidia-.*|cuda-.*|triton")
    needed = installed_closure(PROJECT["dependencies"] + EXTRAS["workshop"] + EXTRAS["dev"])
    missing = sorted(name for name in needed - set(pins()) if not of_torch.fullmatch(name))
    assert missing == []


def test_pins_have_no_local_version_and_hold_the_release_with_the_bug():
    pinned = pins()
    assert [name for name, version in pinned.items() if version.local] == []
    assert str(pinned["deepspeed"]) == "0.19.5"
    assert str(pinned["torch"]) == "2.13.0"


def test_environments_agree():
    course, pip = environment("environment.yml")
    binder, binder_pip = environment("binder/environment.yml")
    assert course == binder
    assert "python=3.11" in course["dependencies"]
    torch = f"torch=={pins()['torch']}"
    assert pip == ["-c constraints.txt", torch, "-e .[workshop]"]
    # Paths from binder/, and the CPU build, which only its own index has.
    index = [line for line in binder_pip if line.startswith("--extra-index-url ")]
    assert len(index) == 1 and index[0].endswith("/whl/cpu")
    assert [line for line in binder_pip if line not in index] == [
        "-c ../constraints.txt",
        f"{torch}+cpu",
        "-e ..[workshop]",
    ]


def test_binder_paths_exist():
    _, pip = environment("binder/environment.yml")
    for line in pip:
        option, _, path = line.partition(" ")
        if option in ("-c", "-e"):
            assert (ROOT / "binder" / path.removesuffix("[workshop]")).exists(), line


def test_scripts_stop_at_the_first_error():
    for name in ("binder/postBuild", ".ci/run"):
        path = ROOT / name
        assert path.stat().st_mode & 0o111, name
        text = path.read_text()
        assert text.startswith("#!/bin/bash\n")
        assert "set -euo pipefail" in text


def test_python_fits():
    assert Requirement(f"python{PROJECT['requires-python']}").specifier.contains(
        f"{sys.version_info.major}.{sys.version_info.minor}"
    )
