"""The guard on the installed DeepSpeed: the live loop runs, with light stand-ins for engine and optimizer."""

import inspect
import linecache
import re
import subprocess
import sys
import traceback
from types import SimpleNamespace

import pytest
import torch
from guard_shapes import MAP

from dskit import guard
from dskit.guard import installed
from dskit.guard.source import SHAPE_WANTED, edited_text, find_lookup

TURN = {"on": guard.on, "off": guard.off}


class LoopPassed(Exception):
    """Raised by the first call after the loop: the rest of init_z3 needs a real engine."""


class Handle:
    """Stands in for the native handle; keeps the gradient buffer that each ds_id was registered with."""

    def __init__(self):
        self.buffers = {}

    def init(self, *arguments):
        pass

    def register_z3_param(self, ds_id, shape, shard, grad_buffer, *rest):
        self.buffers[ds_id] = grad_buffer


def parameter(ds_id, trainable):
    weight = torch.nn.Parameter(torch.zeros(4), requires_grad=trainable)
    weight.ds_id, weight.ds_shape, weight.ds_tensor = ds_id, weight.shape, weight.data
    return weight


@pytest.fixture
def register(real, monkeypatch):
    """Run the live init_z3 up to the end of its loop; return the buffers of the registered parameters."""

    def register(parameters, owned):
        handle = Handle()

        def passed(schedule):
            raise LoopPassed

        # Up to 0.19.6 the handle comes from here, in 0.19.8 from the engine.
        monkeypatch.setattr(real, "get_deepcompile_handle", lambda: handle, raising=False)
        monkeypatch.setattr(real, "init_schedule", passed)
        monkeypatch.setattr(real, "InsertPostInitMethodToModuleSubClasses", SimpleNamespace())
        for name in ("add_post_backward_hook", "DeepCompileZ3EagerFallback"):  # not in every release
            monkeypatch.setattr(real, name, lambda _: SimpleNamespace(complete_backward=None), raising=False)
        optimizer = SimpleNamespace(
            parameter_offload=SimpleNamespace(_remove_module_hooks=lambda: None),
            _grad_acc_hooks=[],
            **{MAP: {ds_id: torch.full((4,), float(ds_id)) for ds_id in owned}},
        )
        engine = SimpleNamespace(
            optimizer=optimizer,
            module=SimpleNamespace(parameters=lambda: iter(parameters), modules=list),
            _initialize_deepcompile_native=lambda config: handle,
            data_parallel_group=None,
            zero_reduce_bucket_size=lambda: 1,
        )
        options = ("offload_opt_states", "offload_parameters", "offload_activation", "symmetric_memory")
        config = SimpleNamespace(**dict.fromkeys(options, False))
        with pytest.raises(LoopPassed):
            real.init_z3(engine, "eager", config, {}, schedule=[])
        return handle.buffers

    return register


def test_off_frozen_parameter_raises_at_the_real_line_of_the_real_file(real, register):
    state = guard.off()
    with pytest.raises(KeyError) as raised:
        register([parameter(0, False), parameter(1, True)], owned=[1])
    assert raised.value.args == (0,)
    last = traceback.extract_tb(raised.value.__traceback__)[-1]
    assert (last.filename, last.lineno, last.name) == (str(state.file), state.line, "init_z3")
    assert last.line == state.file.read_text().splitlines()[state.line - 1].strip()
    assert MAP in last.line


def test_on_frozen_parameter_gets_the_empty_buffer(real, register):
    guard.on()
    buffers = register([parameter(0, False), parameter(1, True), parameter(2, False)], owned=[1])
    assert {ds_id: buffer.numel() for ds_id, buffer in buffers.items()} == {0: 0, 1: 4, 2: 0}
    assert buffers[1].tolist() == [1.0] * 4


def test_on_trainable_parameter_outside_the_map_raises_at_the_real_line(real, register):
    state = guard.on()
    with pytest.raises(KeyError) as raised:
        register([parameter(0, False), parameter(17, True)], owned=[])
    assert raised.value.args == (17,)
    last = traceback.extract_tb(raised.value.__traceback__)[-1]
    assert (last.filename, last.lineno) == (str(state.file), state.line)
    assert MAP in last.line


@pytest.mark.parametrize("direction", ["on", "off"])
def test_all_trainable_is_the_same_either_way(real, register, direction):
    TURN[direction]()
    buffers = register([parameter(0, True), parameter(1, True)], owned=[0, 1])
    assert [buffers[ds_id].tolist() for ds_id in (0, 1)] == [[0.0] * 4, [1.0] * 4]


def test_g16_installed_release_switches_both_ways_and_back(real):
    original, source = real.init_z3.__code__, guard.state().source
    for direction in ("on", "on", "off", "off", "on"):
        state = TURN[direction]()
        as_installed = SHAPE_WANTED[direction] == source
        assert (state.affected, state.foreign) == (direction == "off", False)
        assert state.switch == (None if as_installed else direction)
        assert (real.init_z3.__code__ is original) is as_installed
    assert guard.restore().switch is None
    assert real.init_z3.__code__ is original


def test_engine_holds_the_switched_function(real):
    from deepspeed.runtime import engine

    # 0.19.8 imports it within the method, so there is no reference that could go stale.
    held = vars(engine).get("init_z3", real.init_z3)
    guard.on()
    assert held is real.init_z3
    guard.off()
    assert held is real.init_z3


@pytest.mark.parametrize("direction", ["on", "off"])
def test_inspect_and_linecache_still_show_the_file(real, direction):
    before = inspect.getsourcelines(real.init_z3)
    state = TURN[direction]()
    linecache.checkcache()
    assert inspect.getsourcelines(real.init_z3) == before
    assert inspect.getsourcefile(real.init_z3) == str(state.file)
    assert MAP in linecache.getline(real.init_z3.__code__.co_filename, state.line)


def test_switch_writes_no_file(real):
    file = guard.state().file
    before = file.read_bytes(), file.stat().st_mtime_ns
    for turn in (guard.on, guard.off, guard.restore):
        turn()
    assert (file.read_bytes(), file.stat().st_mtime_ns) == before


@pytest.mark.parametrize("command", [["git", "apply", "-"], ["patch", "-p1", "-s"]], ids=["git", "patch"])
def test_diff_of_the_installed_file_applies(tmp_path, command):
    found = installed.read()
    copy = tmp_path / "deepspeed" / "compile" / "init_z3.py"
    copy.parent.mkdir(parents=True)
    copy.write_bytes(found.file.read_bytes())
    direction = "off" if found.source == "guarded" else "on"
    subprocess.run(command, input=guard.diff(direction).encode(), cwd=tmp_path, check=True)
    assert find_lookup(copy.read_text()).shape == SHAPE_WANTED[direction]
    assert copy.read_bytes().decode() == edited_text(found.text, direction)


def test_diff_is_one_line_with_the_file_s_own_numbers():
    found = installed.read()
    direction, same = ("off", "on") if found.source == "guarded" else ("on", "off")
    assert guard.diff(same) == ""
    head, body = guard.diff(direction).split("@@ ", 1)
    assert head == "--- a/deepspeed/compile/init_z3.py\n+++ b/deepspeed/compile/init_z3.py\n"
    start, *lines = body.splitlines()
    first = (
        found.lookup.line - 1 - 3
    )  # the condition stands one line above the lookup; three lines of context
    assert start == f"-{first},7 +{first},7 @@"
    on_disk = found.text.splitlines()[first - 1 : first + 6]
    assert [line[1:] for line in lines if line[0] != "+"] == on_disk
    assert [line[0] for line in lines] == list("   -+   ")


def test_diff_defaults_to_on_and_does_not_see_the_switch(real):
    before = guard.diff(), guard.diff("off")
    guard.on()
    assert (guard.diff(), guard.diff("off")) == before
    assert guard.diff("on") == before[0]
    with pytest.raises(ValueError, match="'up'"):
        guard.diff("up")


def test_lookup_source_is_what_the_file_says():
    state = guard.state()
    on_disk = state.file.read_text().splitlines()
    excerpt = guard.lookup_source(context=2)
    assert (excerpt.file, excerpt.lookup) == (state.file, state.line)
    assert all(text == on_disk[number - 1] for number, text in excerpt.lines)
    assert re.match(r"    for \w+ in engine.module.parameters\(\):", excerpt.lines[2][1])
    assert str(excerpt).count("\n") == len(excerpt.lines) - 1


def test_importing_and_looking_import_neither_torch_nor_deepspeed():
    script = (
        "import sys, dskit.guard as guard\n"
        "before = set(sys.modules)\n"
        "guard.state(), guard.diff(), guard.diff('off'), guard.lookup_source(), guard.restore()\n"
        "print([name for name in ('torch', 'deepspeed') if name in before])\n"
        "print([name for name in ('torch', 'deepspeed') if name in sys.modules])\n"
    )
    ran = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True)
    assert ran.stdout == "[]\n[]\n"
