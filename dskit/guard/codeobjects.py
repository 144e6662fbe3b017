"""Code objects: init_z3's, compiled from a source's syntax tree, and whether two of them are the same."""

from __future__ import annotations

import ast
from types import CodeType

from dskit.guard.source import FUNCTION

# What decides how a code object runs. The file name is left out (one file has several spellings) and lines
# are compared apart, since an interpreter may cut one line into several ranges.
_COMPARED = (
    *("co_name", "co_flags", "co_argcount", "co_posonlyargcount", "co_kwonlyargcount", "co_code", "co_names"),
    *("co_varnames", "co_freevars", "co_cellvars", "co_firstlineno", "co_exceptiontable"),
)


def function_code(source: ast.Module | str, filename: str) -> CodeType:
    """The code object of init_z3 as an import of this source makes it, with its real line numbers.

    The whole module is compiled, so that future statements and qualified names are as in an import.

    Raises:
        ValueError: the source defines no init_z3 at its top level.
    """
    module = compile(source, filename, "exec", dont_inherit=True)
    codes = [code for code in module.co_consts if isinstance(code, CodeType) and code.co_name == FUNCTION]
    if not codes:
        raise ValueError(f"{filename} defines no {FUNCTION}")
    return codes[-1]


def same_code(one: CodeType, other: CodeType) -> bool:
    """Whether two code objects do the same on the same lines, nested functions included.

    Not `one == other`: before Python 3.12 that also compares what the interpreter has specialised since.
    """
    return all(
        getattr(one, name, None) == getattr(other, name, None) for name in _COMPARED
    ) and _same_lines_and_constants(one, other)


def _same_lines_and_constants(one: CodeType, other: CodeType) -> bool:
    return (
        _line_of_each_instruction(one) == _line_of_each_instruction(other)
        and len(one.co_consts) == len(other.co_consts)
        and all(map(_same_constant, one.co_consts, other.co_consts))
    )


def _line_of_each_instruction(code: CodeType) -> list[int | None]:
    return [line for start, end, line in code.co_lines() for _ in range(start, end, 2)]


def _same_constant(one: object, other: object) -> bool:
    if type(one) is not type(other):  # 1 == True == 1.0
        return False
    if isinstance(one, CodeType):
        return same_code(one, other)
    if isinstance(one, tuple):
        return len(one) == len(other) and all(map(_same_constant, one, other))
    if isinstance(one, (float, complex)):  # 0.0 == -0.0, and nan != nan
        return repr(one) == repr(other)
    return one == other
