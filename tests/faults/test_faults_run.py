"""``dskit run``: a rank that fails in any way ends the run soon, is named, and nothing is left."""

import contextlib
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

REPOSITORY = Path(__file__).resolve().parents[2]

# Both ranks meet in a group, then rank 1 has its fault while rank 0 waits for it in a barrier.
SCRIPT = """
import os, signal, sys, time
import deepspeed
deepspeed.init_distributed()
deepspeed.comm.barrier()
print("met", flush=True)
if os.environ["RANK"] == "1":
    open(os.environ["FAULT_TIME"], "w").write(str(time.time()))
    {fault}
deepspeed.comm.barrier()
time.sleep(600)
"""

FAULTS = {
    "raise": ("raise ValueError('rank one had enough')", "Rank 1 failed:", "ValueError: rank one had enough"),
    "exit 3": ("sys.exit(3)", "Rank 1 exited with status 3", "Rank 0 then failed"),
    "exit 0": ("os._exit(0)", "Rank 1 exited with status 0", ""),
    "SIGKILL": ("os.kill(os.getpid(), signal.SIGKILL)", "Rank 1 was ended by signal 9", "memory ran out"),
    "SIGSEGV": ("import ctypes; ctypes.string_at(0)", "Rank 1 was ended by signal 11", ""),
    "SIGSTOP": ("os.kill(os.getpid(), signal.SIGSTOP)", "Rank 1 was stopped by a signal", ""),
    "deaf": (
        "signal.signal(signal.SIGTERM, signal.SIG_IGN); raise KeyError('deaf to SIGTERM')",
        "Rank 1 failed:",
        "deaf to SIGTERM",
    ),
    "grandchild": (
        "import subprocess; subprocess.Popen(['sleep', '600'], start_new_session=True); raise ValueError(1)",
        "Rank 1 failed:",
        "ValueError: 1",
    ),
}


@pytest.fixture
def begin(watched, tmp_path):
    """Start ``dskit run`` on a script and return the process, its output in files."""
    started = []

    def run(source, *options):
        script = tmp_path / "script.py"
        script.write_text(source)
        command = [sys.executable, "-m", "dskit", "run", "--device", "cpu", *options, str(script)]
        environment = watched.environment | {"FAULT_TIME": str(tmp_path / "fault-time")}
        with (tmp_path / "out").open("w") as out, (tmp_path / "err").open("w") as err:
            process = subprocess.Popen(
                command, cwd=REPOSITORY, env=environment, stdout=out, stderr=err, process_group=0
            )
        started.append(process)
        return process

    yield run
    for process in started:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)
        process.wait()


def ended(process, watched, seconds):
    def done():
        watched.look(process.pid)
        return process.poll() is not None

    watched.wait_for(done, seconds, "dskit run had not ended")
    return process.returncode


@pytest.mark.parametrize("name", FAULTS)
def test_n5_a_fault_on_one_rank_ends_the_run_and_is_named(begin, watched, tmp_path, name):
    fault, named, said = FAULTS[name]
    process = begin(SCRIPT.format(fault=fault))
    status = ended(process, watched, 120)
    took = time.time() - float((tmp_path / "fault-time").read_text())
    errors = (tmp_path / "err").read_text()
    assert status != 0 and named in errors and said in errors, errors
    assert took < 20, f"it took {took:.1f} s from the fault to the end"
    watched.assert_nothing_left()


def wait_until_met(watched, process, tmp_path):
    watched.wait_for(
        lambda: watched.look(process.pid) and (tmp_path / "out").read_text().count("met") == 2, 90, "met"
    )


@pytest.mark.parametrize(
    ("sign", "whole_group", "status"),
    [(signal.SIGINT, True, 130), (signal.SIGTERM, False, 143), (signal.SIGKILL, False, -9)],
    ids=["Ctrl-C", "SIGTERM", "SIGKILL"],
)
def test_a_run_that_is_stopped_from_outside_leaves_nothing(
    begin, watched, tmp_path, sign, whole_group, status
):
    process = begin(SCRIPT.format(fault="pass").replace("deepspeed.comm.barrier()\ntime", "time"))
    wait_until_met(watched, process, tmp_path)
    (os.killpg if whole_group else os.kill)(process.pid, sign)
    assert ended(process, watched, 20) == status
    watched.assert_nothing_left()
    assert "Traceback" not in (tmp_path / "err").read_text()


def test_the_supervisor_killed_leaves_nothing(begin, watched, tmp_path):
    process = begin(SCRIPT.format(fault="pass").replace("deepspeed.comm.barrier()\ntime", "time"))
    wait_until_met(watched, process, tmp_path)
    watched.find(process.pid, "dskit.ranks.supervisor").kill()
    assert ended(process, watched, 20) != 0
    watched.assert_nothing_left()


def test_e8_a_bad_config_key_shows_the_real_error_alone(begin, watched, tmp_path):
    process = begin(
        "import deepspeed, torch\n"
        "model = torch.nn.Linear(4, 4)\n"
        "zero = {'stage': 3, 'no_such_key': 1}\n"
        "config = {'train_micro_batch_size_per_gpu': 1, 'zero_optimization': zero}\n"
        "deepspeed.initialize(model=model, model_parameters=model.parameters(), config=config)\n"
    )
    assert ended(process, watched, 120) == 1
    errors = (tmp_path / "err").read_text()
    assert "no_such_key" in errors and errors.count("Traceback (most recent call last)") == 1, errors
    assert "__del__" not in errors and "Exception ignored" not in errors


def test_r3_a_second_engine_in_one_process_is_refused(begin, watched, tmp_path):
    process = begin(
        "from dskit.experiments.training import RunSettings, make_engine\n"
        "first = make_engine(RunSettings(mode='deepcompile'))\n"
        "first.destroy()\n"
        "make_engine(RunSettings(mode='deepcompile'))\n",
        "--guard",
        "on",
    )
    assert ended(process, watched, 120) == 1
    errors = (tmp_path / "err").read_text()
    assert "A second DeepCompile engine" in errors and "ranks.start()" in errors, errors
