"""The fix for DeepSpeed's ``KeyError: 0`` in ``init_z3``, as a switch on the installed source.

ZeRO-3's map from ds_id to gradient partition holds the parameters that the optimizer owns. DeepCompile's
``init_z3`` looks up every module parameter in it, so the first frozen one raises KeyError. The fix is one
condition: ``if use_opt and p.requires_grad:``.

- ``state()``: what the installed release has, and what runs here.
- ``on()``, ``off()``, ``restore()``: put the condition in, take it out, put the original code object back.
- ``switched("on" | "off")``: the same for one block.
- ``diff()``, ``lookup_source()``: the patch, and the lines of the loop, from the file on disk.
- ``GuardError``: the guard refuses, and has changed nothing.

It looks at the source, not at the version, and never writes to DeepSpeed's files. Importing this imports
neither torch nor DeepSpeed.
"""

from dskit.guard.refusals import GuardError
from dskit.guard.show import Excerpt, diff, lookup_source
from dskit.guard.source import Lookup
from dskit.guard.state import GuardState
from dskit.guard.switch import off, on, restore, state, switched

__all__ = [
    "Excerpt",
    "GuardError",
    "GuardState",
    "Lookup",
    "diff",
    "lookup_source",
    "off",
    "on",
    "restore",
    "state",
    "switched",
]
