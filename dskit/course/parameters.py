"""A notebook's parameters: what it declares, and whether given values fit, checked before a kernel starts.

A parameter is an assignment at the top level of the cell tagged ``parameters``; the default's type is what
a given value has to fit. The cell is read by its syntax tree and not by ``papermill.inspect_notebook``,
which drops every line with a second ``=``, such as ``steps = 10  # >= 6``.
"""

import ast
import difflib
import math
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import nbformat
import yaml

from dskit.errors import DskitError

_TYPES = {"bool": bool, "int": int, "float": float, "str": str, "list": list, "dict": dict}
_NAMES = {bool: "True or False", int: "a whole number", float: "a number", str: "text"}


@dataclass(frozen=True)
class Text:
    """A value as typed on a command line: a YAML scalar, or plain text where the notebook wants text.

    So ``guard=on`` stays ``"on"`` for a parameter whose default is text, though YAML reads a bool.
    """

    text: str

    @property
    def value(self) -> Any:
        try:
            value = yaml.safe_load(self.text)
        except yaml.YAMLError:
            return self.text
        if isinstance(value, str) and any(character.isdigit() for character in value):
            try:
                return float(value)  # YAML 1.1 takes 1e-4 for text: it wants 1.0e-4
            except ValueError:
                return value
        return value if isinstance(value, (bool, int, float, str, list, dict)) or value is None else self.text


def declared(notebook: Path) -> dict[str, Any]:
    """The parameters that a notebook declares, with their defaults, in order.

    Returns:
        Name to default. The default is a type where only an annotation tells it, and ``...`` where it
        cannot be known without running the notebook.

    Raises:
        DskitError: the file cannot be read as a notebook, or its parameters cell is not Python.
    """
    try:
        cells = nbformat.read(notebook, as_version=4).cells
    except Exception as error:  # nbformat raises whatever its parsers do
        raise DskitError(
            f"{notebook.name} cannot be read as a notebook.", f"Found: {type(error).__name__}: {error}"
        ) from error
    tagged = [cell for cell in cells if "parameters" in cell.metadata.get("tags", [])]
    if not tagged:
        return {}
    try:
        tree = ast.parse(tagged[0].source)
    except SyntaxError as error:
        raise DskitError(
            f"{notebook.name}: the cell tagged 'parameters' is not plain Python.",
            f"Found: line {error.lineno}: {error.msg}.",
            "Keep to assignments in that cell.",
        ) from error
    found = {}
    for node in tree.body:
        targets = node.targets if isinstance(node, ast.Assign) else [getattr(node, "target", None)]
        for target in targets:
            if isinstance(target, ast.Name) and isinstance(node, (ast.Assign, ast.AnnAssign)):
                found[target.id] = _default(node)
    return found


def _default(node: ast.Assign | ast.AnnAssign) -> Any:
    annotation = getattr(node, "annotation", None)
    kind = _TYPES.get(annotation.id) if isinstance(annotation, ast.Name) else None
    try:
        value = ast.literal_eval(node.value)
    except (ValueError, TypeError):
        return kind or ...
    if kind is float and type(value) is int:
        return float(value)
    return kind if kind and value is None else value


def plain(value: Any) -> Any:
    """The value in the types that papermill writes rightly into a notebook: JSON's.

    papermill writes everything else as text in quotes, so that a tuple or a path arrives as a ``str``.

    Raises:
        TypeError: for a value that has no such form.
    """
    if hasattr(value, "dtype") and getattr(value, "shape", None) == ():  # numpy and torch scalars
        value = value.item()
    if value is None or type(value) in (bool, int, float, str):
        return value
    if isinstance(value, Path):
        return str(value)
    if isinstance(value, (list, tuple)):
        return [plain(item) for item in value]
    if isinstance(value, Mapping) and all(isinstance(key, str) for key in value):
        return {str(key): plain(item) for key, item in value.items()}
    raise TypeError(f"{type(value).__name__} has no literal form that papermill can write")


def _fit(value: Any, default: Any) -> Any:
    """The value, converted to the default's type, or a TypeError that says what was wanted."""
    kind = default if isinstance(default, type) else type(default)
    if isinstance(value, Text):
        value = value.text if kind is str else value.value
    value = plain(value)
    if default is ... or default is None:
        return value
    if kind is float and type(value) is int:
        return float(value)
    if kind is int and type(value) is float and math.isfinite(value) and value == int(value):
        raise TypeError(f"a whole number is wanted: write {int(value)}")
    if kind is tuple and isinstance(value, list):
        return value
    if type(value) is not kind:
        raise TypeError(f"{_NAMES.get(kind, f'a {kind.__name__}')} is wanted")
    return value


def check(notebooks: list[Path], given: Mapping[str, Any]) -> dict[Path, dict[str, Any]]:
    """The given parameters that each notebook gets: those that it declares, in the declared types.

    Raises:
        DskitError: no notebook declares a name (with the nearest name that one does), or a value does not
            fit the type of a default.
    """
    parameters = {notebook: declared(notebook) for notebook in notebooks}
    for name in given:
        if not any(name in names for names in parameters.values()):
            raise _unknown(name, parameters)
    return {
        notebook: {
            name: _checked(notebook, name, given[name], default)
            for name, default in names.items()
            if name in given
        }
        for notebook, names in parameters.items()
    }


def _checked(notebook: Path, name: str, value: Any, default: Any) -> Any:
    try:
        return _fit(value, default)
    except TypeError as error:
        shown = repr(value.text) if isinstance(value, Text) else f"{value!r} ({type(value).__name__})"
        wanted = default.__name__ if isinstance(default, type) else repr(default)
        raise DskitError(
            f"Parameter {name} of {notebook.stem} does not take that value.",
            f"Found: {shown}; its default is {wanted}.",
            f"{str(error)[0].upper()}{str(error)[1:]}.",
        ) from error


def _unknown(name: str, parameters: dict[Path, dict[str, Any]]) -> DskitError:
    known = sorted({declared_name for names in parameters.values() for declared_name in names})
    listed = ", ".join(notebook.stem for notebook in parameters)
    near = difflib.get_close_matches(name, known, n=1, cutoff=0.5)
    if near:
        where = ", ".join(notebook.stem for notebook, names in parameters.items() if near[0] in names)
        todo = f"Did you mean {near[0]} (of {where})?"
    else:
        todo = (
            f"Declared are: {', '.join(known)}." if known else "None of them has a cell tagged 'parameters'."
        )
    return DskitError(
        f"No notebook has a parameter named {name}.", f"Looked in the parameters cells of: {listed}.", todo
    )
