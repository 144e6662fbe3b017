"""Notebooks that pass, raise, hang and die: what is left of each."""

import json
import os
import subprocess
import sys
from pathlib import Path

import nbformat
import psutil
import pytest
from course_cells import FIGURE, PARAMETERS, code

from dskit.course import run_notebooks
from dskit.course.execute import DEFAULT_CELL_DEADLINE
from dskit.errors import DskitError


def outputs(executed: Path) -> str:
    """All that the cells printed."""
    cells = nbformat.read(executed, as_version=4).cells
    return "".join(output.get("text", "") for cell in cells for output in cell.get("outputs", []))


class Recorder:
    def __init__(self):
        self.events = []

    def started(self, result, total):
        self.events.append(("started", result.name, total))

    def cell(self, result, number, total):
        self.events.append((result.name, number, total))

    def finished(self, result):
        self.events.append(("finished", result.name, result.state))


def test_n3_runs_in_this_environment_whatever_kernel_is_named(make, out, tmp_path, monkeypatch):
    # Nor is a kernel of the usual name taken, which may be another environment's.
    spec = tmp_path / "jupyter" / "kernels" / "python3" / "kernel.json"
    spec.parent.mkdir(parents=True)
    spec.write_text(json.dumps({"argv": ["false"], "display_name": "another", "language": "python"}))
    monkeypatch.setenv("JUPYTER_PATH", str(tmp_path / "jupyter"))
    notebook = make(
        "01_run",
        PARAMETERS,
        "import os, shutil, sys\nprint(sys.executable, os.getcwd(), steps, backend, sep='\\n')",
        FIGURE,
        kernel="no-such-kernel",
    )
    progress = Recorder()
    (result,) = run_notebooks([notebook], out, {"steps": 3}, progress=progress)
    assert result.failure is None and result.passed
    printed = outputs(out / "01_run.ipynb").splitlines()
    assert printed[0] == sys.executable
    assert Path(printed[1]).samefile(notebook.parent)
    assert printed[2:] == ["3", "eager"]  # the given value, and papermill's default
    assert result.parameters == {
        "steps": 3,
        "lr": 0.1,
        "backend": "eager",
        "verbose": False,
        "sizes": [1, 2],
    }
    # four cells: papermill adds the one with the given parameters
    counts = [("01_run", number, 4) for number in range(1, 5)]
    assert progress.events == [("started", "01_run", 4), *counts, ("finished", "01_run", "passed")]


def test_a_failing_notebook_is_kept_and_the_others_run(make, out):
    bad = make("01_bad", "print('kept')", "x = 1\nassert x == 2, '<b>x</b>'", "print('never')")
    good = make("02_good", "print('ran')")
    first, second = run_notebooks([bad, good], out)
    assert not first.passed and second.passed
    assert first.failure.cell == 2
    assert first.failure.reason == "AssertionError: <b>x</b>"
    assert first.failure.source.startswith("x = 1")
    assert "----> 2 assert x == 2" in first.failure.traceback
    assert "\x1b" not in first.failure.traceback
    assert outputs(first.executed).strip() == "kept"
    assert outputs(second.executed).strip() == "ran"


def test_n4_a_cell_that_never_returns_is_stopped_at_its_deadline(make, out):
    notebook = make(
        "01_hang",
        "import os\nprint(os.getpid(), flush=True)",
        "import time\nprint('went in', flush=True)\nwhile True:\n    time.sleep(0.1)",
        "print('never')",
    )
    (result,) = run_notebooks([notebook], out, cell_deadline=1.5)
    assert result.failure.cell == 2
    assert "deadline of 2 s" in result.failure.reason
    assert "----> 4     time.sleep(0.1)" in result.failure.traceback  # where it hung
    assert result.seconds < 15
    kept = outputs(result.executed).split()
    assert kept[1:] == ["went", "in"]
    assert not psutil.pid_exists(int(kept[0]))


def test_n4_a_cell_that_will_not_be_interrupted_is_stopped_too(make, out):
    stubborn = (
        "import time\nwhile True:\n    try:\n        time.sleep(60)\n    except BaseException:\n        pass"
    )
    notebook = make("01_stuck", "import os\nprint(os.getpid(), flush=True)", stubborn)
    (result,) = run_notebooks([notebook], out, cell_deadline=1)
    assert result.failure.cell == 2
    assert "did not answer the interrupt" in result.failure.reason
    assert result.seconds < 25
    assert not psutil.pid_exists(int(outputs(result.executed)))


def test_a_kernel_that_dies_is_named(make, out):
    notebook = make("01_dead", "print('kept')", "import os, signal\nos.kill(os.getpid(), signal.SIGKILL)")
    (result,) = run_notebooks([notebook], out)
    assert result.failure.cell == 2
    assert "the kernel died" in result.failure.reason
    assert outputs(result.executed).strip() == "kept"


def test_leaving_early_is_no_pass_and_a_tagged_error_is_none(make, out):
    early = make("01_early", "import sys\nsys.exit(0)", "print('never')")
    tagged = make("02_tagged", code("1 / 0", "raises-exception"), "print('ran')")
    first, second = run_notebooks([early, tagged], out)
    assert first.failure.cell == 1 and "SystemExit" in first.failure.reason
    assert second.passed and outputs(second.executed).strip() == "ran"
    assert "papermill-error-cell" not in second.executed.read_text()


def test_the_source_notebook_is_not_changed(make, out):
    notebook = make("01_run", PARAMETERS)
    before = notebook.read_bytes()
    run_notebooks([notebook], out, {"steps": 1}, index=False)
    assert notebook.read_bytes() == before
    assert sorted(path.name for path in out.iterdir()) == ["01_run.ipynb", "figures"]


def test_nothing_is_left_of_a_kernel(make, out, tmp_path, monkeypatch):
    sockets = tmp_path / "s"
    sockets.mkdir()
    monkeypatch.setattr("tempfile.tempdir", str(sockets))
    run_notebooks([make("01_run", "print(1)")], out)
    assert list(sockets.iterdir()) == []


@pytest.mark.slow
def test_n2_eight_runs_at_once(make, out):
    notebook = make("01_run", "print('ran')")
    command = [sys.executable, "-m", "dskit", "notebooks", str(notebook), "--no-index", "--out"]
    runs = [subprocess.Popen([*command, str(out / str(number))]) for number in range(8)]
    assert [run.wait(timeout=200) for run in runs] == [0] * 8
    assert [outputs(out / str(number) / "01_run.ipynb") for number in range(8)] == ["ran\n"] * 8


@pytest.mark.skipif(os.name != "posix", reason="sockets in files are POSIX's")
def test_a_long_temporary_folder_does_not_matter(make, out, tmp_path, monkeypatch):
    deep = tmp_path / ("d" * 120)
    deep.mkdir()
    monkeypatch.setattr("tempfile.tempdir", str(deep))
    (result,) = run_notebooks([make("01_run", "print(1)")], out)
    assert result.passed


def test_interrupting_the_run_keeps_what_ran(make, out):
    class Impatient(Recorder):
        def cell(self, result, number, total):
            if number == 2:
                raise KeyboardInterrupt

    notebooks = [make("01_run", "print('kept')", "print('never')"), make("02_next", "print(1)")]
    with pytest.raises(KeyboardInterrupt):
        run_notebooks(notebooks, out, progress=Impatient())
    assert outputs(out / "01_run.ipynb").strip() == "kept"
    index = (out / "index.html").read_text()
    assert "01_run failed in cell 2" in index and "stopped by KeyboardInterrupt" in index
    assert "waiting" in index


@pytest.mark.parametrize("deadline", [0, -1, float("inf"), float("nan"), "5"])
def test_a_deadline_is_finite_and_positive(make, out, started, deadline):
    with pytest.raises(DskitError, match="positive number of seconds"):
        run_notebooks([make("01_run", "print(1)")], out, cell_deadline=deadline)
    assert started == []
    assert 0 < DEFAULT_CELL_DEADLINE <= 600


def test_what_would_overwrite_something_is_refused(make, out, started, tmp_path):
    notebook = make("01_run", "print(1)")
    with pytest.raises(DskitError, match="overwrite the notebooks"):
        run_notebooks([notebook], notebook.parent)
    twin = tmp_path / "other" / "01_run.ipynb"
    twin.parent.mkdir()
    twin.write_bytes(notebook.read_bytes())
    with pytest.raises(DskitError, match="Found twice: 01_run"):
        run_notebooks([notebook, twin], out)
    out.write_text("a file")
    with pytest.raises(DskitError, match="cannot be made"):
        run_notebooks([notebook], out)
    assert started == []


def test_what_is_no_notebook_is_refused(out, started, tmp_path):
    with pytest.raises(DskitError, match="There is no notebook"):
        run_notebooks([tmp_path / "none.ipynb"], out)
    (tmp_path / "odd.ipynb").write_text("{")
    with pytest.raises(DskitError, match=r"odd\.ipynb cannot be read"):
        run_notebooks([tmp_path / "odd.ipynb"], out)
    assert started == []
