"""The course through papermill on two ranks, over backends, seeds and dtypes; on CUDA where there is one."""

from pathlib import Path

import nbformat
import pytest

from dskit.course import pairs, places, run_notebooks

NOTEBOOKS = Path(__file__).resolve().parents[2] / "notebooks"
COURSE = ["01_the_crash", "02_inside_init_z3", "03_the_guarded_fix"]
FIGURES = {"01_the_crash": 0, "02_inside_init_z3": 2, "03_the_guarded_fix": 1}


def run(name, out, **parameters):
    [result] = run_notebooks([NOTEBOOKS / f"{name}.ipynb"], out, parameters)
    assert result.passed, (
        f"{name}, cell {result.failure.cell}: {result.failure.traceback or result.failure.reason}"
    )
    return nbformat.read(result.executed, as_version=4)


def printed(notebook):
    streams = [
        o.text for cell in notebook.cells if cell.cell_type == "code" for o in cell.outputs if "text" in o
    ]
    return "\n".join(streams)


@pytest.mark.timeout(400)
@pytest.mark.parametrize(
    ("name", "backend", "seed"),
    [
        ("01_the_crash", "inductor", 0),
        ("02_inside_init_z3", "inductor", 1),
        ("03_the_guarded_fix", "inductor", 0),
        ("03_the_guarded_fix", "eager", 1),
    ],
)
def test_notebook_passes_on_two_cpu_ranks(tmp_path, name, backend, seed):
    executed = run(name, tmp_path, device="cpu", backend=backend, seed=seed)
    assert "2 ranks on cpu" in printed(executed)
    assert len(list((tmp_path / "figures").glob("*.png"))) == FIGURES[name]
    if (name, backend) == ("03_the_guarded_fix", "eager"):
        assert "largest difference over 2 ranks and 10 steps: 0 " in printed(executed)


@pytest.mark.slow
@pytest.mark.timeout(400)
@pytest.mark.parametrize("seed", [0, 7])
@pytest.mark.parametrize("dtype", ["fp32", "bf16", "fp16"])
@pytest.mark.parametrize("backend", ["eager", "inductor"])
@pytest.mark.parametrize("name", COURSE)
def test_notebook_passes_over_the_whole_grid(tmp_path, name, backend, dtype, seed):
    run(name, tmp_path, device="cpu", backend=backend, dtype=dtype, seed=seed)


@pytest.mark.gpu(1)
@pytest.mark.timeout(900)
@pytest.mark.parametrize("backend", ["eager", "inductor"])
@pytest.mark.parametrize("name", COURSE)
def test_notebook_passes_on_cuda(tmp_path, name, backend):
    executed = run(name, tmp_path, device="auto", backend=backend)
    assert "2 ranks on cuda" in printed(executed), "the ranks fell back to the CPU"


def test_a_claim_that_does_not_hold_fails_the_notebook(tmp_path):
    """The asserts are live: with a loss rule that cannot hold, notebook 03 stops where it compares."""
    broken = nbformat.read(NOTEBOOKS / "03_the_guarded_fix.ipynb", as_version=4)
    cells = [cell for cell in broken.cells if cell.cell_type == "code"]
    [comparison] = [cell for cell in cells if "assert difference <= allowed" in cell.source]
    comparison.source = comparison.source.replace("allowed = {", "compiled[3]['loss'] += 1e-3\nallowed = {")
    nbformat.write(broken, tmp_path / "broken.ipynb")
    [result] = run_notebooks(
        [tmp_path / "broken.ipynb"], tmp_path / "out", {"device": "cpu", "backend": "eager"}
    )
    assert not result.passed and "AssertionError" in result.failure.reason
    assert result.failure.cell == cells.index(comparison) + 2, "papermill puts its parameters cell first"


def test_every_notebook_is_listed_here_and_in_step_with_its_text():
    assert [path.stem for path in places.find([])] == COURSE
    assert pairs.check(NOTEBOOKS) == []


@pytest.mark.parametrize("name", COURSE)
def test_every_notebook_declares_the_same_parameters(name):
    notebook = nbformat.read(NOTEBOOKS / f"{name}.ipynb", as_version=4)
    [cell] = [cell for cell in notebook.cells if "parameters" in cell.metadata.get("tags", [])]
    declared = [line.partition(" =")[0] for line in cell.source.splitlines() if " = " in line]
    assert sorted(declared) == ["backend", "device", "dtype", "seed", "steps", "world_size"]
