import subprocess
from pathlib import Path

import nbformat
import pytest
from course_cells import code
from nbformat import v4


@pytest.fixture
def make(tmp_path):
    """Writes ``notebooks/<name>.ipynb`` of the given code cells."""

    def write(name: str, *cells, kernel: str = "python3") -> Path:
        notebook = v4.new_notebook(cells=[code(cell) if isinstance(cell, str) else cell for cell in cells])
        notebook.metadata["kernelspec"] = {"name": kernel, "display_name": kernel}
        path = tmp_path / "notebooks" / f"{name}.ipynb"
        path.parent.mkdir(exist_ok=True)
        nbformat.write(notebook, path)
        return path

    return write


@pytest.fixture
def out(tmp_path) -> Path:
    return tmp_path / "out"


@pytest.fixture
def started(monkeypatch) -> list:
    """The processes that are started: none is, and each is written down."""
    commands = []

    def refuse(command, *args, **kwargs):
        commands.append(command)
        raise OSError("no process in this test")

    monkeypatch.setattr(subprocess, "Popen", refuse)
    monkeypatch.setattr("jupyter_client.launcher.Popen", refuse)
    return commands
