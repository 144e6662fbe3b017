"""The switch on small packages that stand in for DeepSpeed: quick, and of any shape."""

import importlib
import os
import signal
import sys
import threading

import pytest
from guard_shapes import LOOKUP_LINE, SHAPES, UNGUARDED, buffers, write_package

from dskit import guard
from dskit.guard import switch
from dskit.guard.source import SHAPE_WANTED

TURN = {"on": guard.on, "off": guard.off}
FROZEN_AND_TRAINABLE = (False, True)
REPAIRED = [(0, []), (1, "partition 1")]


def runs(init_z3):
    """ "on" or "off", by what happens to a frozen parameter."""
    try:
        assert buffers(init_z3, *FROZEN_AND_TRAINABLE) == REPAIRED
    except KeyError as error:
        assert error.args == (0,)
        return "off"
    return "on"


@pytest.mark.parametrize("direction", ["on", "off"])
@pytest.mark.parametrize("shape", SHAPES)
def test_g16_switched_twice_then_restored(load, shape, direction):
    module = load(SHAPES[shape])
    original, as_installed = module.init_z3.__code__, runs(module.init_z3)
    first = TURN[direction]()
    code = module.init_z3.__code__
    second = TURN[direction]()
    assert first == second == guard.state()
    assert module.init_z3.__code__ is code
    assert runs(module.init_z3) == direction
    assert (code is original) == (shape == SHAPE_WANTED[direction])
    assert guard.restore() == guard.restore()
    assert module.init_z3.__code__ is original
    assert vars(module.init_z3) == {}
    assert runs(module.init_z3) == as_installed


@pytest.mark.parametrize("shape", SHAPES)
def test_g16_on_and_off_in_turn_end_at_the_original(load, shape):
    module = load(SHAPES[shape])
    original = module.init_z3.__code__
    for direction in ("on", "off", "on", "on", "off", "off", "on"):
        assert TURN[direction]().affected is (direction == "off")
        assert runs(module.init_z3) == direction
    guard.restore()
    assert module.init_z3.__code__ is original


@pytest.mark.parametrize("shape", SHAPES)
def test_state_says_what_is_installed_and_what_runs(install, shape):
    package = install(SHAPES[shape], release="0.19.9")
    before = guard.state()
    assert "deepspeed" not in sys.modules
    assert (before.release, before.file) == ("0.19.9", package / "compile" / "init_z3.py")
    assert (before.line, before.source, before.switch) == (LOOKUP_LINE, shape, None)
    assert (before.affected, before.detail, before.foreign) == (shape == "unguarded", "", False)
    opposite = "on" if shape == "unguarded" else "off"
    after = TURN[opposite]()
    assert (after.source, after.switch, after.affected) == (shape, opposite, shape == "guarded")
    same = TURN["off" if opposite == "on" else "on"]()
    assert (same.source, same.switch, same.affected) == (shape, None, shape == "unguarded")


def test_e10_release_number_without_the_condition_is_affected(install):
    install(UNGUARDED, release="0.19.6")
    assert (guard.state().release, guard.state().affected) == ("0.19.6", True)


def test_loaded_release_is_the_one_that_is_told(load, tmp_path, monkeypatch):
    module = load()
    write_package(tmp_path / "other", SHAPES["guarded"], release="0.19.8")
    monkeypatch.syspath_prepend(tmp_path / "other")
    assert (str(guard.state().file), guard.state().release) == (module.__file__, "0.19.5")
    assert guard.on().switch == "on"


def test_every_importer_gets_it(load):
    module = load()
    engine = sys.modules["deepspeed.runtime.engine"]
    held = module.init_z3
    guard.on()
    assert held is module.init_z3 is engine.init_z3
    assert runs(engine.compile_backend) == "on"


def test_defaults_and_signature_stay(load):
    function = load().init_z3
    function.__defaults__ = ("kept",)
    guard.on()
    assert function.__defaults__ == ("kept",)
    assert function.__code__.co_varnames[:5] == (
        "engine",
        "backend",
        "compile_config",
        "compile_kwargs",
        "schedule",
    )


def test_trainable_parameter_outside_the_map_still_fails(load):
    module = load()
    guard.on()
    with pytest.raises(KeyError, match="1"):
        buffers(module.init_z3, False, True, owned=())


def test_nested_function_of_the_switched_code_works(load):
    module = load(UNGUARDED.replace("return backend\n", "return set_grad_buffer\n"))
    guard.on()
    engine_like = buffers(lambda engine, *rest: (engine, module.init_z3(engine, *rest)), True)
    engine_like[0].optimizer.owned = list(engine_like[0].module.parameters())
    assert engine_like[1]() == ["partition 0"]


@pytest.mark.parametrize("shape", SHAPES)
def test_switched_blocks_nest(load, shape):
    module = load(SHAPES[shape])
    original, as_installed = module.init_z3.__code__, runs(module.init_z3)
    with guard.switched("on") as outer:
        assert (outer.affected, runs(module.init_z3)) == (False, "on")
        outer_code = module.init_z3.__code__
        with guard.switched("off") as inner:
            assert (inner.affected, runs(module.init_z3)) == (True, "off")
            with guard.switched("off"):
                assert runs(module.init_z3) == "off"
            assert runs(module.init_z3) == "off"
        assert module.init_z3.__code__ is outer_code
    assert module.init_z3.__code__ is original
    assert (runs(module.init_z3), guard.state().switch) == (as_installed, None)
    assert vars(module.init_z3) == {}


@pytest.mark.parametrize("within", [guard.on, guard.off, guard.restore])
def test_switched_puts_back_what_ran_before_on_an_exception(load, within):
    module = load()
    guard.on()
    code = module.init_z3.__code__
    with pytest.raises(RuntimeError, match="in the block"), guard.switched("off"):
        within()
        raise RuntimeError("in the block")
    assert module.init_z3.__code__ is code
    assert guard.state().switch == "on"


def test_switched_refuses_an_unknown_direction(install):
    install()
    with pytest.raises(ValueError, match="'sideways'"), guard.switched("sideways"):
        raise AssertionError("the block ran")
    assert "deepspeed" not in sys.modules


def test_switched_survives_a_reload_within_the_block(load):
    module = load()
    first = module.init_z3
    original = first.__code__
    with guard.switched("on"):
        importlib.reload(module)
        guard.on()
        assert runs(module.init_z3) == "on"
    assert first.__code__ is original
    assert module.init_z3 is not first
    assert runs(module.init_z3) == runs(first) == "off"


def test_two_threads_switching_leave_one_of_two_codes(load):
    module = load()
    original, found, failures = module.init_z3.__code__, [], []

    def turn(direction):
        try:
            for _ in range(25):
                TURN[direction]()
                found.append(guard.state())
        except Exception as error:
            failures.append(error)

    threads = [threading.Thread(target=turn, args=(direction,)) for direction in ("on", "off")]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert failures == []
    assert len(found) == 50
    assert {(each.switch, each.foreign) for each in found} <= {("on", False), (None, False)}
    guard.restore()
    assert module.init_z3.__code__ is original


def test_one_thread_switches_at_a_time(load, monkeypatch):
    module = load()
    original, edited_code = module.init_z3.__code__, switch._edited_code
    within, second_came, seen = [], threading.Event(), []

    def slow_edit(*arguments):
        within.append(1)
        seen.append(len(within))
        if len(seen) > 1:
            second_came.set()
        second_came.wait(0.5)  # time for the second thread to come in here, if nothing keeps it out
        within.pop()
        return edited_code(*arguments)

    monkeypatch.setattr(switch, "_edited_code", slow_edit)
    threads = [threading.Thread(target=guard.on) for _ in range(2)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert seen == [1]  # the second thread found the switch on
    guard.restore()
    assert module.init_z3.__code__ is original


def test_blocks_of_two_threads_that_overlap_end_at_what_ran_before(load):
    module = load()
    original = module.init_z3.__code__
    entered, leave = threading.Event(), threading.Event()

    def first_to_enter():
        with guard.switched("on"):
            entered.set()
            leave.wait(60)

    thread = threading.Thread(target=first_to_enter)
    thread.start()
    assert entered.wait(60)
    with guard.switched("on"):
        leave.set()
        thread.join()
        assert runs(module.init_z3) == "on"  # the other block has ended, ours has not
    assert module.init_z3.__code__ is original
    assert guard.state().switch is None


def in_a_fork(action):
    """Exit status of a forked child that runs the action; SIGALRM ends one that hangs."""
    child = os.fork()
    if child == 0:
        signal.alarm(60)
        try:
            os._exit(0 if action() else 3)
        except BaseException:
            os._exit(4)
    return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])


def test_fork_after_the_switch_keeps_it(load):
    module = load()
    guard.on()

    def child():
        if (runs(module.init_z3), guard.state().switch) != ("on", "on"):
            return False
        guard.restore()
        return runs(module.init_z3) == "off"

    assert in_a_fork(child) == 0
    assert runs(module.init_z3) == "on"


def test_fork_while_another_thread_holds_the_lock_does_not_hang(load):
    module = load()
    held, release = threading.Event(), threading.Event()

    def hold():
        with switch._lock:
            held.set()
            release.wait(60)

    thread = threading.Thread(target=hold)
    thread.start()
    assert held.wait(60)
    try:
        status = in_a_fork(lambda: guard.on().switch == "on" and runs(module.init_z3) == "on")
    finally:
        release.set()
        thread.join()
    assert status == 0


@pytest.mark.parametrize("engine", [False, True], ids=["module_alone", "with_its_engine"])
def test_reload_of_deepspeeds_module(load, engine):
    module = load(engine=engine)
    guard.on()
    before = module.init_z3
    importlib.reload(module)
    assert module.init_z3 is not before
    state = guard.state()
    assert (state.switch, state.affected) == (None, True)
    # The engine still calls the function of before the reload.
    assert ("deepspeed.runtime.engine" in state.detail) is engine
    assert guard.on().switch == "on"
    assert runs(module.init_z3) == "on"
    guard.restore()
    assert runs(module.init_z3) == "off"
    assert runs(before) == ("off" if engine else "on")


def test_reload_of_deepspeeds_module_with_the_engine_still_off(load):
    module = load(SHAPES["guarded"])
    guard.off()
    importlib.reload(module)
    assert runs(module.init_z3) == "on"
    assert runs(sys.modules["deepspeed.runtime.engine"].compile_backend) == "off"
    assert guard.state().affected is True
    assert guard.on().affected is False
    assert runs(sys.modules["deepspeed.runtime.engine"].compile_backend) == "on"


def test_g16_original_survives_a_reload_of_the_guard(load):
    module = load()
    original = module.init_z3.__code__
    guard.on()
    importlib.reload(switch)
    assert (switch.state().switch, switch.on().switch) == ("on", "on")
    switch.restore()
    assert module.init_z3.__code__ is original


def test_g16_original_survives_a_fresh_import_of_the_guard(load, monkeypatch):
    module = load()
    original = module.init_z3.__code__
    guard.on()
    for name in [name for name in sys.modules if name.startswith("dskit.guard")]:
        monkeypatch.delitem(sys.modules, name)
    fresh = importlib.import_module("dskit.guard")
    assert fresh is not guard
    assert fresh.state().switch == "on"
    assert fresh.restore().switch is None
    assert module.init_z3.__code__ is original


def test_block_that_outlives_a_reload_of_the_guard_still_ends(load):
    module = load()
    original = module.init_z3.__code__
    with guard.switched("on"):
        importlib.reload(switch)
    assert module.init_z3.__code__ is original


def test_lookup_source_shows_the_loop_with_its_line_numbers(install):
    package = install()
    on_disk = (package / "compile" / "init_z3.py").read_text().splitlines()
    excerpt = guard.lookup_source()
    assert [number for number, _ in excerpt.lines] == [16, 17, 18, 19, 20, 21]
    assert all(on_disk[number - 1] == text for number, text in excerpt.lines)
    assert excerpt.lookup == LOOKUP_LINE
    assert [line for line in str(excerpt).splitlines() if line.startswith(">")] == [
        f"> {LOOKUP_LINE}  {on_disk[LOOKUP_LINE - 1]}"
    ]
    assert [number for number, _ in guard.lookup_source(context=99).lines] == list(range(1, len(on_disk) + 1))


def test_lookup_source_shows_either_direction(install):
    install()
    as_installed, on, off = (guard.lookup_source(direction) for direction in (None, "on", "off"))
    assert off == as_installed
    changed = [(a, b) for a, b in zip(off.lines, on.lines, strict=True) if a != b]
    assert changed == [((18, "        if use_opt:"), (18, "        if use_opt and p.requires_grad:"))]
    with pytest.raises(ValueError, match="'up'"):
        guard.lookup_source("up")
    with pytest.raises(ValueError, match="-1"):
        guard.lookup_source(context=-1)
