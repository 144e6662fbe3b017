"""Operator schemas of DeepCompile's native layer, read from the installed release.

The native extension declares its operators in ``csrc/compile/init.cpp``, which every DeepSpeed wheel
carries. Reading them from there fits every release: the argument lists differ between releases, and the
Python passes of a release call that release's operators.
"""

import re
from pathlib import Path

from dskit.errors import DskitError

_LIBRARY = re.compile(r"TORCH_LIBRARY\(dc, m\)\s*\{(?P<body>.*?)^\}", re.DOTALL | re.MULTILINE)
_MODULE = re.compile(r"PYBIND11_MODULE\([^)]*\)\s*\{(?P<body>.*?)^\}", re.DOTALL | re.MULTILINE)
_DEFINITION = re.compile(r'm\.def\(\s*(?P<literals>(?:"[^"]*"\s*)+)')
_LITERAL = re.compile(r'"([^"]*)"')


def native_source(deepspeed_root: Path) -> Path:
    """Path of the file that declares the operators, below the installed ``deepspeed`` package."""
    return deepspeed_root / "ops" / "csrc" / "compile" / "init.cpp"


def operator_schemas(deepspeed_root: Path) -> dict[str, str]:
    """Schemas of the ``dc`` operators, by operator name, in the order of declaration.

    Args:
        deepspeed_root: folder of the installed ``deepspeed`` package.

    Raises:
        DskitError: the release carries no DeepCompile source, or declares no operator in it.
    """
    schemas = {}
    for definition in _definitions(deepspeed_root, _LIBRARY):
        schema = " ".join("".join(_LITERAL.findall(definition)).split())
        schemas[schema.partition("(")[0]] = schema
    return schemas


def handle_calls(deepspeed_root: Path) -> list[str]:
    """Names of the functions that the native Python module offers beside the operators.

    Raises:
        DskitError: as in ``operator_schemas``.
    """
    # After a name pybind takes the function, so the first run of literals is the name alone.
    return sorted({_LITERAL.findall(d)[0] for d in _definitions(deepspeed_root, _MODULE)})


def _definitions(deepspeed_root: Path, block: re.Pattern) -> list[str]:
    path = native_source(deepspeed_root)
    try:
        text = path.read_text(encoding="utf-8")
    except OSError as error:
        raise DskitError(
            "The operators of DeepCompile's native layer could not be read.",
            f"{path}: {error.strerror}.",
            "Install a DeepSpeed release from 0.18.0 on from its sdist or wheel; both carry that file.",
        ) from error
    found = block.search(text)
    definitions = [m["literals"] for m in _DEFINITION.finditer(found["body"])] if found else []
    if not definitions:
        raise DskitError(
            "The operators of DeepCompile's native layer could not be read.",
            f"{path} declares none in the form that dskit knows.",
            "Use a DeepSpeed release from 0.18.0 to 0.19.8.",
        )
    return definitions
