"""What must hold before ranks start, checked where a message can still be read."""

import importlib.util
import os
import shlex
import shutil

from dskit.errors import DskitError

BACKENDS = ("auto", "inductor", "eager")
GUARDS = ("auto", "on", "off")


def check_choice(what: str, value: str, choices: tuple[str, ...]) -> None:
    """Raise a DskitError unless ``value`` is one of ``choices``."""
    if value not in choices:
        raise DskitError(
            f"The ranks were not started: unknown {what}.",
            f"{what} is {value!r}.",
            f"Choose one of {', '.join(choices)}.",
        )


def check_packages() -> None:
    """Raise a DskitError if a package is missing that DeepCompile would miss only at step 5."""
    for package, use in (
        ("torch", "the ranks train with it"),
        ("deepspeed", "it is what the kit is about"),
        ("scipy", "DeepSpeed's prefetch pass needs it from step 5 on"),
    ):
        if importlib.util.find_spec(package) is None:
            raise DskitError(
                "The ranks were not started: a package is missing.",
                f"{package} is not installed; {use}.",
                f"Install it: pip install {package}",
            )


def cxx_compiler() -> str | None:
    """Path of the C++ compiler that Inductor would call on a CPU, or None."""
    named = shlex.split(os.environ.get("CXX", ""))
    for candidate in [*named[:1], "g++", "clang++"]:
        if path := shutil.which(candidate):
            return path
    return None


def check_compiler(backend: str, accelerator: str) -> None:
    """Raise a DskitError if the backend needs a C++ compiler and there is none."""
    if accelerator == "cpu" and backend != "eager" and cxx_compiler() is None:
        raise DskitError(
            "The ranks were not started: the backend inductor compiles C++ on a CPU.",
            "No C++ compiler was found (CXX, g++ and clang++ were tried).",
            "Install one (Debian: apt-get install g++; conda: conda install cxx-compiler), "
            "or use the backend eager, which needs none.",
        )
