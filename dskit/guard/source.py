"""The lookup in the text of DeepSpeed's init_z3.py: find it, add its condition or take it out.

Pure functions on source text. Nothing is imported, read or written here, so every release can be looked at,
installed or not.
"""

from __future__ import annotations

import ast
import difflib
import re
from collections.abc import Iterator
from dataclasses import dataclass, field

FUNCTION = "init_z3"
#: ZeRO-3's map from a parameter's ds_id to its gradient partition; it holds the optimizer's parameters only.
GRAD_PARTITION_MAP = "_DeepSpeedZeroOptimizer_Stage3__param_id_to_grad_partition"
#: The shape of the lookup that each direction of the switch asks for.
SHAPE_WANTED = {"on": "guarded", "off": "unguarded"}

_FLAG_VALUE = re.compile(r"not isinstance\(optimizer, [\w.]+\)")


@dataclass(frozen=True)
class Lookup:
    """Where a source reads the map of gradient partitions for every module parameter, and on what condition.

    Attributes:
        shape: "unguarded" (`if use_opt:`), "guarded" (`if use_opt and p.requires_grad:`), "unconditional"
            (no `if` at all, as in DeepSpeed 0.16.6) or "unknown".
        line: 1-based line of the lookup, 0 where there is none or more than one.
        loop: first and last line of the loop over the parameters, (0, 0) where the shape is unknown.
        flag: name of the variable that says that there is an optimizer.
        parameter: name of the loop variable.
        reason: why the shape is unknown, else empty.
    """

    shape: str
    line: int = 0
    loop: tuple[int, int] = (0, 0)
    flag: str = ""
    parameter: str = ""
    reason: str = ""
    branch: ast.If | None = field(default=None, repr=False, compare=False)

    def condition(self, direction: str) -> str:
        """The condition as the direction ("on" or "off") wants it, as source text."""
        return f"{self.flag} and {self.parameter}.requires_grad" if direction == "on" else self.flag


class _UnknownShape(Exception):
    def __init__(self, reason: str, line: int = 0):
        self.line = line
        super().__init__(reason)


def find_lookup(text: str) -> Lookup:
    """Find the lookup in the text of init_z3.py by its syntax tree. A text of any kind gets an answer."""
    try:
        return _find(ast.parse(text))
    except (SyntaxError, ValueError) as error:  # ValueError: a null byte in the text
        return Lookup("unknown", reason=f"the file is not Python source: {error}")


def edited_tree(text: str, direction: str) -> ast.Module:
    """The syntax tree of the text with the condition added ("on") or taken out ("off"), every line kept.

    Raises:
        ValueError: the direction is neither, or the text has no lookup of a known shape.
    """
    tree = ast.parse(text)
    lookup = _require_edit(_find(tree), direction)
    if lookup.shape != SHAPE_WANTED[direction]:
        condition = ast.parse(lookup.condition(direction), mode="eval").body
        for node in ast.walk(condition):  # where the old condition stood, so that a traceback shows it
            ast.copy_location(node, lookup.branch.test)
        lookup.branch.test = condition
    return tree


def edited_text(text: str, direction: str) -> str:
    """The text with the condition added ("on") or taken out ("off"), every other character kept.

    Raises:
        ValueError: the direction is neither, or the text has no lookup of a known shape.
    """
    lookup = _require_edit(find_lookup(text), direction)
    if lookup.shape == SHAPE_WANTED[direction]:
        return text
    test = lookup.branch.test
    lines = [line.encode() for line in text.split("\n")]  # the tree counts columns in UTF-8 bytes
    head = lines[test.lineno - 1][: test.col_offset]
    tail = lines[test.end_lineno - 1][test.end_col_offset :]
    lines[test.lineno - 1 : test.end_lineno] = [head + lookup.condition(direction).encode() + tail]
    edited = b"\n".join(lines).decode()
    if ast.dump(ast.parse(edited)) != ast.dump(edited_tree(text, direction)):
        raise ValueError(f"line {test.lineno} cannot be edited as text")
    return edited


def unified_diff(before: str, after: str, path: str) -> str:
    """A unified diff with three lines of context that `patch -p1` and `git apply` take; empty if equal."""
    lines = difflib.unified_diff(split_lines(before), split_lines(after), f"a/{path}", f"b/{path}")
    return "".join(
        line if line.endswith("\n") else f"{line}\n\\ No newline at end of file\n" for line in lines
    )


def skips_none_grads(text: str) -> bool:
    """Whether add_gather_and_reduce, in the text of zero3_compile.py, reduces only where there is a gradient.

    Without this skip a frozen parameter gets a reduce whose gradient node is None.
    """
    try:
        definitions = _definitions(ast.parse(text), "add_gather_and_reduce")
    except (SyntaxError, ValueError):
        return False
    reduces = list(_reduces(definitions[-1].body)) if definitions else []
    return bool(reduces) and all(reduces)


def split_lines(text: str) -> list[str]:
    """The lines of a text, each with its newline."""
    # Not splitlines(): it also splits at form feeds and the like, which neither Python nor patch counts.
    lines = [f"{line}\n" for line in text.split("\n")]
    lines[-1] = lines[-1][:-1]
    return lines if lines[-1] else lines[:-1]


def _require_edit(lookup: Lookup, direction: str) -> Lookup:
    if direction not in SHAPE_WANTED:
        raise ValueError(f"direction must be 'on' or 'off', not {direction!r}")
    if lookup.shape not in SHAPE_WANTED.values():
        raise ValueError(lookup.reason or "the lookup stands on no condition")
    return lookup


def _definitions(tree: ast.Module, name: str) -> list[ast.FunctionDef]:
    return [node for node in tree.body if isinstance(node, ast.FunctionDef) and node.name == name]


def _find(tree: ast.Module) -> Lookup:
    try:
        function = _the_function(tree)
        mention = _the_mention(function)
        return _match(function, _the_loop(function, mention), mention)
    except _UnknownShape as unknown:
        return Lookup("unknown", line=unknown.line, reason=str(unknown))


def _the_function(tree: ast.Module) -> ast.FunctionDef:
    definitions = _definitions(tree, FUNCTION)
    if len(definitions) != 1:
        raise _UnknownShape(f"{FUNCTION} is defined {len(definitions)} times at the top level, not once")
    if definitions[0].decorator_list:
        raise _UnknownShape(f"{FUNCTION} is decorated")
    return definitions[0]


def _the_mention(function: ast.FunctionDef) -> ast.AST:
    """The one place that reads the map of gradient partitions with no requires_grad beside it."""
    conditional = {
        id(node.body.value)
        for node in ast.walk(function)
        if isinstance(node, ast.IfExp) and isinstance(node.body, ast.Subscript) and _tests_requires_grad(node)
    }
    mentions = [
        node
        for node in ast.walk(function)
        if id(node) not in conditional
        and GRAD_PARTITION_MAP in (getattr(node, "attr", None), getattr(node, "value", None))
    ]
    if len(mentions) != 1:
        lines = ", ".join(str(line) for line in sorted(node.lineno for node in mentions))
        found = f"{len(mentions)} lookups, on lines {lines}" if mentions else "no lookup"
        raise _UnknownShape(f"{FUNCTION} has {found}, where one was expected")
    return mentions[0]


def _tests_requires_grad(choice: ast.IfExp) -> bool:
    parameter = ast.unparse(choice.body.slice).removesuffix(".ds_id")
    return ast.unparse(choice.test) == f"{parameter}.requires_grad"


def _the_loop(function: ast.FunctionDef, mention: ast.AST) -> ast.For:
    for node in function.body:
        if isinstance(node, ast.For) and mention in ast.walk(node):
            break
    else:
        raise _UnknownShape("the lookup is in no loop of the function's own", mention.lineno)
    if ast.unparse(node.iter) != "engine.module.parameters()":
        raise _UnknownShape(f"the loop is over `{ast.unparse(node.iter)}`", mention.lineno)
    if not isinstance(node.target, ast.Name) or _times_bound(node, node.target.id) != 1:
        raise _UnknownShape("the loop variable is not one name that stays as it is", mention.lineno)
    return node


def _match(function: ast.FunctionDef, loop: ast.For, mention: ast.AST) -> Lookup:
    statement = next((node for node in loop.body if mention in ast.walk(node)), None)
    branch = statement if isinstance(statement, ast.If) else None
    parameter, line = loop.target.id, mention.lineno
    assignment = branch.body[0] if branch and len(branch.body) == 1 and not branch.orelse else statement
    target = _lookup_target(assignment, parameter)
    if target is None:
        raise _UnknownShape("the lookup is not the one assignment under its `if`", line)
    where = {"line": line, "loop": (loop.lineno, loop.end_lineno), "parameter": parameter}
    if branch is None:
        return Lookup("unconditional", **where)
    if f"{target} = torch.Tensor()" not in map(ast.unparse, loop.body[: loop.body.index(branch)]):
        # A frozen parameter would get the buffer of the parameter before it.
        raise _UnknownShape(f"`{target}` is not the empty `torch.Tensor()` before the lookup", line)
    shape, flag = _condition(branch.test, parameter)
    _require_flag(function, loop, flag)
    return Lookup(shape, flag=flag, branch=branch, **where)


def _lookup_target(node: ast.AST | None, parameter: str) -> str | None:
    """The name that is assigned the parameter's gradient partition, None if this is no such assignment."""
    if (
        not isinstance(node, ast.Assign)
        or len(node.targets) != 1
        or not isinstance(node.targets[0], ast.Name)
    ):
        return None
    reads = ast.unparse(node.value) == f"optimizer.{GRAD_PARTITION_MAP}[{parameter}.ds_id]"
    return node.targets[0].id if reads else None


def _condition(test: ast.expr, parameter: str) -> tuple[str, str]:
    both = isinstance(test, ast.BoolOp) and isinstance(test.op, ast.And)
    terms = [ast.unparse(term) for term in (test.values if both else [test])]
    flags = [term for term in terms if term != f"{parameter}.requires_grad"]
    if len(terms) > 2 or len(flags) != 1 or not flags[0].isidentifier():
        raise _UnknownShape(f"the lookup's condition is `{ast.unparse(test)}`", test.lineno)
    return ("guarded" if len(terms) == 2 else "unguarded"), flags[0]


def _require_flag(function: ast.FunctionDef, loop: ast.For, flag: str) -> None:
    bound = [
        node
        for node in function.body[: function.body.index(loop)]
        if isinstance(node, ast.Assign)
        and [ast.unparse(target) for target in node.targets] == [flag]
        and _FLAG_VALUE.fullmatch(ast.unparse(node.value))
    ]
    if len(bound) != 1 or _times_bound(function, flag) != 1:
        reason = f"`{flag}` in the lookup's condition is not bound once, to `not isinstance(optimizer, ...)`"
        raise _UnknownShape(reason, loop.lineno)


def _times_bound(tree: ast.AST, name: str) -> int:
    names = (node for node in ast.walk(tree) if isinstance(node, ast.Name) and node.id == name)
    return sum(not isinstance(node.ctx, ast.Load) for node in names)


def _reduces(statements: list[ast.stmt], known: frozenset[str] = frozenset()) -> Iterator[bool]:
    """Per call of add_reduce: whether one of its arguments is known, at that place, not to be None."""
    for node in statements:
        subject, test = _none_test(node)
        if test is ast.Is and isinstance(node.body[-1], ast.Continue):
            known |= {subject}
        elif blocks := [block for name in ("body", "orelse") if (block := getattr(node, name, []))]:
            yield from _reduces(blocks[0], known | {subject} if test is ast.IsNot else known)
            yield from (found for block in blocks[1:] for found in _reduces(block, known))
        else:
            calls = (call for call in ast.walk(node) if isinstance(call, ast.Call))
            reduces = (call for call in calls if ast.unparse(call.func).split(".")[-1] == "add_reduce")
            yield from (any(ast.unparse(argument) in known for argument in call.args) for call in reduces)


def _none_test(node: ast.stmt) -> tuple[str, type | None]:
    """The subject and operator of `if subject is None:` or `if subject is not None:`."""
    test = node.test if isinstance(node, ast.If) else None
    if isinstance(test, ast.Compare) and [ast.unparse(right) for right in test.comparators] == ["None"]:
        return ast.unparse(test.left), type(test.ops[0])
    return "", None
