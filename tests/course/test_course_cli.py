"""The command line, as a person uses it: exit status, messages, no traceback."""

import os
import signal
import subprocess
import sys
import time
import types

import psutil
import pytest
from course_cells import PARAMETERS

from dskit import cli

DSKIT = [sys.executable, "-m", "dskit"]


@pytest.fixture
def dskit(capfd, monkeypatch):
    """Runs the command line in this process; gives exit status, stdout and stderr."""

    def call(*arguments: object):
        monkeypatch.setattr(sys, "argv", ["dskit", *map(str, arguments)])
        previous = signal.getsignal(signal.SIGTERM)
        try:
            cli.main()
            status = 0
        except SystemExit as stop:
            status = stop.code or 0
        finally:
            signal.signal(signal.SIGTERM, previous)
        return status, *capfd.readouterr()

    return call


def test_notebooks_that_fail_exit_1_and_are_named(make, out, dskit):
    bad = make("01_bad", PARAMETERS, "assert steps > 5, 'too few'")
    good = make("02_good", "print(1)")
    status, stdout, _ = dskit("notebooks", bad, good, "--out", out, "-p", "steps=3")
    assert status == 1
    assert "01_bad: cell 3/3\n" in stdout
    assert "01_bad failed in cell 3: AssertionError: too few" in stdout
    assert "----> 1 assert steps > 5" in stdout and "\x1b" not in stdout
    assert "02_good: passed in" in stdout
    assert stdout.rstrip().endswith(f"1 of 2 notebooks passed. Results: {out / 'index.html'}")


def test_notebooks_that_pass_exit_0(make, out, dskit):
    status, stdout, _ = dskit("notebooks", make("01_good", "print(1)"), "--out", out, "--no-index")
    assert status == 0
    assert stdout.rstrip().endswith(f"1 of 1 notebooks passed. Results: {out}")
    assert not (out / "index.html").exists()


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["-p", "stpes=3"], "Did you mean steps"),
        (["-p", "steps=many"], "whole number is wanted"),
        (["-p", "steps"], "NAME=VALUE"),
        (["-p", "steps=1", "-p", "steps=2"], "given twice"),
        (["--cell-deadline", "0"], "positive number of seconds"),
        (["--cell-deadline", "soon"], "--cell-deadline"),
        (["--rank", "2"], "No such option"),
        (["03_none"], "There is no notebook 03_none"),
    ],
)
def test_n1_wrong_use_exits_2_without_a_traceback(make, out, dskit, started, arguments, message):
    notebook = make("01_a", PARAMETERS)
    status, _, stderr = dskit("notebooks", notebook, "--out", out, *arguments)
    assert status == 2
    assert message in " ".join(stderr.split())
    assert "Traceback" not in stderr
    assert started == []


def test_an_unexpected_exception_keeps_its_traceback(dskit, monkeypatch):
    monkeypatch.setattr("dskit.course.places.notebooks_folder", lambda: 1 / 0)
    with pytest.raises(ZeroDivisionError):
        dskit("pair")


def launched(monkeypatch, status=0):
    calls = []

    def launch(script, args, **options):
        calls.append((script, args, options))
        return status

    module = types.ModuleType("dskit.ranks.launch")
    module.launch = launch
    monkeypatch.setitem(sys.modules, module.__name__, module)
    return calls


def test_run_passes_what_follows_the_script_untouched(dskit, monkeypatch):
    calls = launched(monkeypatch, status=7)
    arguments = ["--ranks", "3", "--guard", "off", "a.py", "--ranks", "9", "-x", "--", "--device=tpu", "b"]
    status, *_ = dskit("run", *arguments)
    assert status == 7
    options = {"ranks": 3, "device": "auto", "guard": "off", "backend": "auto"}
    assert calls == [("a.py", ["--ranks", "9", "-x", "--", "--device=tpu", "b"], options)]


def test_run_refuses_an_unknown_option_of_its_own(dskit, monkeypatch):
    calls = launched(monkeypatch)
    for arguments in (["--rank", "3", "a.py"], ["--ranks", "two", "a.py"], []):
        status, _, stderr = dskit("run", *arguments)
        assert status == 2
        assert "Usage: dskit run" in stderr
    assert calls == []


def test_pair_writes_and_checks(dskit, tmp_path, monkeypatch):
    text = tmp_path / "notebooks" / "text" / "01_a.py"
    text.parent.mkdir(parents=True)
    text.write_text("# %%\n1\n")
    monkeypatch.chdir(tmp_path)
    status, _, stderr = dskit("pair", "--check")
    assert status == 1 and "01_a: the notebook is missing" in stderr
    assert dskit("pair")[0] == 0
    status, stdout, _ = dskit("pair", "--check")
    assert status == 0 and "1 notebooks agree" in stdout


def test_imports_bring_no_heavy_library():
    heavy = "torch deepspeed papermill nbformat nbclient matplotlib pandas"
    check = f"import sys, dskit, dskit.cli; print([m for m in {heavy.split()} if m in sys.modules])"
    done = subprocess.run([sys.executable, "-c", check], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"


def test_a_missing_library_is_named_with_what_installs_it(tmp_path):
    hide = "import sys; sys.modules['papermill'] = None; sys.argv = ['dskit', 'pair']"
    hide += "; from dskit.cli import main; main()"
    done = subprocess.run([sys.executable, "-c", hide], capture_output=True, text=True, cwd=tmp_path)
    assert done.returncode == 2
    assert "Missing: papermill." in done.stderr and "dskit[workshop]" in done.stderr
    assert "Traceback" not in done.stderr


def test_n4_a_terminated_run_leaves_no_kernel(make, out):
    notebook = make("01_hang", "import time\ntime.sleep(600)")
    command = [*DSKIT, "notebooks", str(notebook), "--out", str(out)]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True)
    for line in process.stdout:
        if "cell 1/1" in line:
            break
    children = psutil.Process(process.pid).children(recursive=True)
    assert children
    time.sleep(0.5)
    os.kill(process.pid, signal.SIGTERM)
    assert process.wait(timeout=30) == 128 + signal.SIGTERM
    _, alive = psutil.wait_procs(children, timeout=15)
    assert alive == []
    assert (out / "01_hang.ipynb").is_file() and (out / "index.html").is_file()
