import importlib
import sys

import guard_shapes
import pytest

from dskit import guard
from dskit.guard import switch


def _deepspeed_modules():
    return [name for name in sys.modules if name == "deepspeed" or name.startswith("deepspeed.")]


@pytest.fixture
def no_deepspeed(monkeypatch):
    """A process that has not imported DeepSpeed; afterwards it has again what it had."""
    before = {name: sys.modules.pop(name) for name in _deepspeed_modules()}
    yield
    assert not switch._blocks
    for name in _deepspeed_modules():
        del sys.modules[name]
    sys.modules.update(before)


@pytest.fixture
def install(tmp_path, monkeypatch, no_deepspeed):
    """Put a small package `deepspeed` on the path, from the text of its init_z3.py."""

    def install(init_z3=guard_shapes.UNGUARDED, **kwargs):
        package = guard_shapes.write_package(tmp_path, init_z3, **kwargs)
        monkeypatch.syspath_prepend(tmp_path)
        return package

    return install


@pytest.fixture
def load(install):
    """Install such a package, import it with its engine, and return the module deepspeed.compile.init_z3."""

    def load(init_z3=guard_shapes.UNGUARDED, engine=True, **kwargs):
        install(init_z3, **kwargs)
        if engine:
            importlib.import_module("deepspeed.runtime.engine")
        return importlib.import_module("deepspeed.compile.init_z3")

    return load


@pytest.fixture(scope="session")
def real_module():
    return importlib.import_module("deepspeed.compile.init_z3")


@pytest.fixture
def real(real_module):
    """The installed DeepSpeed's module, as its import made it before and after the test."""
    guard.restore()
    original = real_module.init_z3.__code__
    yield real_module
    guard.restore()
    assert real_module.init_z3.__code__ is original
    assert not switch._blocks
