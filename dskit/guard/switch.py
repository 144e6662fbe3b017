"""The switch: init_z3's code object in this process, with the condition or without it.

The function object stays and its `__code__` is swapped, so whoever imported init_z3 before gets it too. The
edited code keeps the file name and the line numbers of the source, so a traceback points at the real file.
"""

from __future__ import annotations

import importlib
import os
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from types import CodeType, FunctionType

from dskit.guard import refusals
from dskit.guard.codeobjects import function_code, same_code
from dskit.guard.installed import MODULE, Installed, read
from dskit.guard.source import FUNCTION, SHAPE_WANTED, edited_tree
from dskit.guard.state import GuardState

# On the function itself: (original code, edited code, "on" or "off"). There it outlives a reload of this
# module, and a plain tuple is understood by the reloaded one.
RECORD = "__dskit_guard__"
# engine.compile() calls its own module's reference, which after a reload of MODULE is another function.
_HOLDERS = ("deepspeed.runtime.engine", MODULE)
_FOREIGN = "foreign"

_lock: threading.RLock = globals().get("_lock") or threading.RLock()
_blocks: list[_Block] = globals().get("_blocks") or []


def state() -> GuardState:
    """What the installed release has, and what runs in this process. Imports and changes nothing.

    Raises:
        GuardError: DeepSpeed is not installed.
    """
    found = read()
    with _lock:
        return _state(found)


def on() -> GuardState:
    """Make the condition present in the running init_z3. A source that has it is left as it is.

    Imports DeepSpeed, which takes seconds the first time.

    Raises:
        GuardError: the source or the running function is not one that the guard can switch.
        ImportError: DeepSpeed's own import failed.
    """
    return _switch("on")


def off() -> GuardState:
    """Make the condition absent in the running init_z3, so that a frozen parameter raises KeyError.

    Imports DeepSpeed, which takes seconds the first time. A source that lacks the condition is left as it is.

    Raises:
        GuardError: the source or the running function is not one that the guard can switch.
        ImportError: DeepSpeed's own import failed.
    """
    return _switch("off")


def restore() -> GuardState:
    """Put back the very code object that the import of DeepSpeed made, if anything was switched.

    Raises:
        GuardError: something else replaced the code after the switch; nothing was changed.
    """
    found = read()
    with _lock:
        switched_functions = [fn for fn in _live().values() if _record(fn)]
        _require_known(found, only=switched_functions)
        for function in switched_functions:
            _put_back(function)
        return _state(found)


@contextmanager
def switched(direction: str) -> Iterator[GuardState]:
    """Within the block the condition is there ("on") or not ("off"); after it, what ran before runs again.

    Blocks nest. The switch belongs to the process, so blocks that overlap in several threads see each other:
    the one entered last decides, and when all have ended, what ran before the first runs again. An init_z3
    that a reload made within the block runs as installed after it.

    Raises:
        ValueError: the direction is neither "on" nor "off".
        GuardError: as `on` and `off`.
    """
    found = _ready(direction)
    with _lock:
        _require_known(found)
        block = _Block([(fn, fn.__code__, _record(fn)) for fn in _live().values()])
        now = _turn(found, direction)
        _blocks.append(block)
    try:
        yield now
    finally:
        with _lock:
            _leave(block)


@dataclass(eq=False)
class _Block:
    """What ran when a `switched` block was entered: per function its code and its record."""

    before: list[tuple[FunctionType, CodeType, tuple | None]]


def _leave(block: _Block) -> None:
    later = _blocks[_blocks.index(block) + 1 :]
    _blocks.remove(block)
    if later:  # another thread entered a block since, and is still in it: its end puts back ours
        later[0].before = block.before
        return
    for function, code, record in block.before:
        function.__code__ = code
        vars(function).pop(RECORD, None)
        if record:
            setattr(function, RECORD, record)
    known = [function for function, _, _ in block.before]
    for function in _live().values():
        if function not in known and _record(function):
            _put_back(function)


def _switch(direction: str) -> GuardState:
    found = _ready(direction)
    with _lock:
        return _turn(found, direction)


def _ready(direction: str) -> Installed:
    """Check the source, then import it. Not under the lock: an import runs foreign code, for seconds."""
    if direction not in SHAPE_WANTED:
        raise ValueError(f"direction must be 'on' or 'off', not {direction!r}")
    refusals.require_switchable(read())
    importlib.import_module(MODULE)
    found = read()  # again, since what was imported need not be what was found first
    refusals.require_switchable(found)
    return found


def _turn(found: Installed, direction: str) -> GuardState:
    if MODULE not in _live():
        raise refusals.foreign(found, MODULE, "gone")
    _require_known(found)
    functions = list(_live().values())
    wanted = SHAPE_WANTED[direction]
    fresh = [fn for fn in functions if not _record(fn) and found.lookup.shape != wanted]
    edits = {fn: _edited_code(found, fn, direction) for fn in fresh}  # all, before the first is swapped
    for function in functions:
        record = _record(function)
        if function in edits:
            setattr(function, RECORD, (function.__code__, edits[function], direction))
            function.__code__ = edits[function]
        elif record and record[2] != direction:
            _put_back(function)
        elif record:  # switched that way already; an interrupt may have come between the two steps above
            function.__code__ = record[1]
    return _state(found)


def _edited_code(found: Installed, function: FunctionType, direction: str) -> CodeType:
    tree = edited_tree(found.text, direction)
    code = function_code(tree, function.__code__.co_filename)
    # Python takes no other code object. It cannot differ: the edit names nothing that the function did not.
    assert code.co_freevars == function.__code__.co_freevars, code.co_freevars
    return code


def _put_back(function: FunctionType) -> None:
    function.__code__ = _record(function)[0]
    delattr(function, RECORD)


def _record(function: object) -> tuple[CodeType, CodeType, str] | None:
    return vars(function).get(RECORD) if isinstance(function, FunctionType) else None


def _live() -> dict[str, object]:
    """The init_z3 of each loaded module that holds one, one entry for each distinct object."""
    found: dict[str, object] = {}
    for name in _HOLDERS:
        held = vars(sys.modules[name]).get(FUNCTION) if name in sys.modules else None
        found = {where: value for where, value in found.items() if value is not held}
        if held is not None:
            found[name] = held
    return found


def _running(found: Installed, function: object) -> str | None:
    """What one init_z3 runs: None for the source as installed, "on", "off", or _FOREIGN."""
    if not isinstance(function, FunctionType):
        return _FOREIGN
    code = function.__code__
    if record := _record(function):
        original, edited, direction = record
        return direction if code is edited else None if code is original else _FOREIGN
    if found.text is None:  # nothing to compare with
        return None
    return None if _is_the_source(found.text, code) else _FOREIGN


def _is_the_source(text: str, code: CodeType) -> bool:
    try:
        return same_code(code, function_code(text, code.co_filename))
    except (SyntaxError, ValueError):
        return False


def _require_known(found: Installed, only: list[object] | None = None) -> None:
    for where, function in _live().items():
        if only is not None and function not in only:
            continue
        if _running(found, function) == _FOREIGN:
            raise refusals.foreign(found, where, _described(function))


def _described(function: object) -> str:
    code = getattr(function, "__code__", None)
    if code is None:
        return f"a {type(function).__name__}"
    return f"the code of {code.co_filename}, line {code.co_firstlineno}"


def _state(found: Installed) -> GuardState:
    runs = {where: _running(found, function) for where, function in _live().items()}
    detail = found.lookup.reason
    if not detail and not found.skips_none_grads:
        detail = "The reduce pass lacks the None-grad skip, so the condition alone is no repair."
    installed = GuardState(
        release=found.release,
        file=found.file,
        line=found.lookup.line,
        source=found.source,
        switch=None,
        detail=detail,
        unconditional=found.lookup.shape == "unconditional",
    )
    states = [replace(installed, switch=run) for run in runs.values() if run != _FOREIGN] or [installed]
    # Where holders differ, the one that will fail: a promise that holds for one of them only is no promise.
    now = next((each for each in states if each.affected), states[0])
    if len(set(runs.values())) > 1:
        now = replace(now, detail=f"Modules hold different versions of init_z3: {', '.join(sorted(runs))}.")
    foreign = [where for where, run in runs.items() if run == _FOREIGN]
    if foreign:
        now = replace(now, foreign=True, detail=f"{foreign[0]}.init_z3 is not what its source file says.")
    return now


def _fresh_lock_after_fork() -> None:
    # The thread that held the lock does not exist in the child.
    global _lock
    _lock = threading.RLock()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_fresh_lock_after_fork)
