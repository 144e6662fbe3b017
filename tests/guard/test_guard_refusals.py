"""What the guard refuses, what it says, and that it changes nothing."""

import compileall
import functools
import pickle
import shutil
import sys
import types
from pathlib import Path

import pytest
from guard_shapes import GUARDED, REDUCE_PASS_WITHOUT_SKIP, SHAPES, UNCONDITIONAL, UNGUARDED, write_package
from test_guard_source import UNKNOWN

from dskit import guard
from dskit.errors import DskitError

SWITCHES = [guard.on, guard.off, lambda: guard.switched("on").__enter__(), guard.diff]


def refusals(*, names):
    """What each way to switch says; all say the same three parts, with the names in them."""
    said = set()
    for switch in SWITCHES:
        with pytest.raises(guard.GuardError) as refused:
            switch()
        said.add(str(refused.value))
    (message,) = said
    assert len(message.splitlines()) == 3
    for name in names:
        assert str(name) in message
    return message


@pytest.mark.parametrize("name", UNKNOWN)
def test_g15_unknown_shape_is_refused_and_nothing_changes(install, name):
    old, new = UNKNOWN[name]
    text = UNGUARDED.replace(old, new)
    assert text != UNGUARDED
    file = install(text, release="0.19.99") / "compile" / "init_z3.py"
    state = guard.state()
    assert (state.source, state.switch, state.affected) == ("unknown", None, None)
    assert state.detail
    refusals(names=[file, "0.19.99", state.detail])
    assert file.read_text() == text
    assert "deepspeed" not in sys.modules  # it was not even imported


def test_g15_loaded_function_of_unknown_shape_is_left_alone(load):
    module = load(UNGUARDED.replace("if use_opt:", "if use_opt and p.ds_id:", 1))
    code = module.init_z3.__code__
    refusals(names=[module.__file__, "0.19.5", "line 18"])
    assert guard.restore().switch is None
    assert module.init_z3.__code__ is code


@pytest.mark.parametrize("release", ["0.16.6", "0.17.0"])
def test_g14_unconditional_lookup_is_refused(install, release):
    file = (
        install(UNCONDITIONAL, reduce_pass=REDUCE_PASS_WITHOUT_SKIP, release=release)
        / "compile"
        / "init_z3.py"
    )
    state = guard.state()
    assert (state.source, state.unconditional, state.affected, state.line) == ("unknown", True, True, 18)
    message = refusals(names=[file, release, "None-grad skip", "no condition at all"])
    assert "0.18.0 is the first release" in message


def test_g14_lookup_with_use_opt_but_no_skip_is_refused(install):
    file = (
        install(UNGUARDED, reduce_pass=REDUCE_PASS_WITHOUT_SKIP, release="0.17.6") / "compile" / "init_z3.py"
    )
    state = guard.state()
    assert (state.source, state.affected) == ("unguarded", True)
    assert "None-grad skip" in state.detail
    message = refusals(names=[file, "0.17.6", "None-grad skip", "zero3_compile.py"])
    assert "0.18.0 is the first release" in message


def test_unconditional_lookup_with_the_skip_is_refused(install):
    file = install(UNCONDITIONAL, release="0.17.99") / "compile" / "init_z3.py"
    refusals(names=[file, "0.17.99", "no condition at all"])


def test_release_without_deepcompile_for_zero3_is_refused(install):
    package = install(None, release="0.16.5")
    state = guard.state()
    assert (state.source, state.line, state.affected) == ("absent", 0, False)
    refusals(names=[package / "compile" / "init_z3.py", "0.16.5", "0.16.6"])


def test_compiled_only_copy_is_refused(install):
    package = install()
    file = package / "compile" / "init_z3.py"
    assert compileall.compile_file(file, legacy=True, quiet=1)
    file.unlink()
    assert (guard.state().source, guard.state().affected) == ("unknown", None)
    refusals(names=[file, "0.19.5", "no source file"])


def test_deleted_source_file_is_refused(install):
    file = install() / "compile" / "init_z3.py"
    file.unlink()
    refusals(names=[file, "0.19.5", "no source file"])


def test_source_file_deleted_after_the_import(load):
    module = load()
    original = module.init_z3.__code__
    guard.on()
    (guard.state().file).unlink()
    assert (guard.state().source, guard.state().switch, guard.state().affected) == ("unknown", "on", False)
    refusals(names=["no source file"])
    assert guard.restore().switch is None
    assert module.init_z3.__code__ is original


def test_undecodable_source_is_refused(install):
    file = install() / "compile" / "init_z3.py"
    file.write_bytes(b"\xff\xfe" + UNGUARDED.encode())
    refusals(names=[file, "cannot be decoded"])


def test_zip_archive_is_refused(tmp_path, monkeypatch, no_deepspeed):
    write_package(tmp_path / "plain", UNGUARDED)
    archive = shutil.make_archive(str(tmp_path / "archive"), "zip", tmp_path / "plain")
    monkeypatch.syspath_prepend(archive)
    assert guard.state().source == "unknown"
    refusals(names=["archive.zip", "no source file"])


@pytest.mark.parametrize("folder", [False, True], ids=["nothing", "a_folder_called_deepspeed"])
def test_no_deepspeed_at_all(tmp_path, monkeypatch, no_deepspeed, folder):
    if folder:
        (tmp_path / "deepspeed").mkdir()
    without = [str(tmp_path), *(entry for entry in sys.path if not (Path(entry) / "deepspeed").exists())]
    monkeypatch.setattr(sys, "path", without)
    refusals(names=[sys.executable])
    for look in (guard.state, guard.restore, guard.lookup_source):
        with pytest.raises(guard.GuardError, match="no package called deepspeed"):
            look()


def replaced(module):
    module.init_z3 = lambda *arguments: None


def wrapped(module):
    function = module.init_z3
    module.init_z3 = functools.wraps(function)(lambda *arguments: function(*arguments))


def code_swapped(module):
    code = module.init_z3.__code__
    module.init_z3.__code__ = code.replace(co_consts=(*code.co_consts, "more"))


def replaced_by_a_callable(module):
    module.init_z3 = functools.partial(module.init_z3, schedule=None)


def replaced_in_the_engine(module):
    sys.modules["deepspeed.runtime.engine"].init_z3 = lambda *arguments: None


FOREIGN = [replaced, wrapped, code_swapped, replaced_by_a_callable, replaced_in_the_engine]


def held():
    names = ("deepspeed.compile.init_z3", "deepspeed.runtime.engine")
    functions = [sys.modules[name].init_z3 for name in names]
    return [(function, getattr(function, "__code__", None)) for function in functions]


@pytest.mark.parametrize("patch", FOREIGN)
@pytest.mark.parametrize("shape", SHAPES)
def test_function_that_something_else_replaced_is_left_alone(load, shape, patch):
    module = load(SHAPES[shape])
    patch(module)
    before = held()
    state = guard.state()
    assert (state.foreign, state.affected, state.source) == (True, None, shape)
    for switch in SWITCHES[:3]:
        with pytest.raises(guard.GuardError) as refused:
            switch()
        assert "0.19.5" in str(refused.value)
        assert str(state.file) in str(refused.value)
    assert held() == before


def test_code_replaced_after_the_switch_is_left_alone(load):
    module = load()
    guard.on()
    code_swapped(module)
    before = held()
    assert guard.state().foreign
    for switch in (guard.on, guard.off, guard.restore):
        with pytest.raises(guard.GuardError, match="not the one in its source file"):
            switch()
    assert held() == before


def test_function_taken_away_is_refused(load):
    module = load(engine=False)
    del module.init_z3
    for switch in SWITCHES[:3]:
        with pytest.raises(guard.GuardError, match="is gone"):
            switch()


@pytest.mark.parametrize("edit", ["\n" + UNGUARDED, GUARDED], ids=["lines_moved", "condition_added"])
def test_source_edited_after_the_import_is_refused(load, edit):
    module = load()
    code = module.init_z3.__code__
    (guard.state().file).write_text(edit)
    assert (guard.state().foreign, guard.state().affected) == (True, None)
    with pytest.raises(guard.GuardError, match="not the one in its source file"):
        guard.on()
    assert module.init_z3.__code__ is code


def test_lookup_source_of_an_unknown_shape_is_refused(install):
    install(UNGUARDED.replace("if use_opt:", "if use_opt and p.ds_id:", 1))
    with pytest.raises(guard.GuardError, match="shape"):
        guard.lookup_source()


def test_lookup_source_shows_a_lookup_that_cannot_be_switched(install):
    install(UNCONDITIONAL, reduce_pass=REDUCE_PASS_WITHOUT_SKIP)
    assert guard.lookup_source().lookup == 18
    with pytest.raises(guard.GuardError, match="None-grad skip"):
        guard.lookup_source("on")


@pytest.mark.parametrize("stated", ["metadata", "checkout"])
def test_release_without_its_own_statement(install, tmp_path, monkeypatch, stated):
    package = install()
    (package / "git_version_info_installed.py").unlink()
    if stated == "checkout":
        (tmp_path / "version.txt").write_text("0.20.0\n")
    else:
        (tmp_path / "deepspeed-0.20.0.dist-info").mkdir()
        (tmp_path / "deepspeed-0.20.0.dist-info" / "METADATA").write_text(
            "Name: deepspeed\nVersion: 0.20.0\n"
        )
    assert guard.state().release == "0.20.0"


def test_module_called_deepspeed_that_is_no_package(monkeypatch, no_deepspeed):
    monkeypatch.setitem(sys.modules, "deepspeed", types.ModuleType("deepspeed"))
    refusals(names=["no package called deepspeed"])
    monkeypatch.delitem(sys.modules, "deepspeed")


def test_refusal_is_a_dskit_error_that_pickles(install):
    install(None, release="0.16.5")
    with pytest.raises(DskitError) as refused:
        guard.on()
    again = pickle.loads(pickle.dumps(refused.value))
    assert (type(again), str(again)) == (guard.GuardError, str(refused.value))
