"""Fixtures for fault injection: a watched run, a kernel, a notebook on disk."""

import queue
import sys
import time
from pathlib import Path

import nbformat
import pytest

sys.path.insert(0, str(Path(__file__).parent))

from family import Watched

REPOSITORY = Path(__file__).resolve().parents[2]


@pytest.fixture
def watched():
    run = Watched()
    yield run
    run.close()


@pytest.fixture
def kernel(watched):
    """A notebook's kernel as JupyterLab would run it, with ranks started in it."""
    from jupyter_client import KernelManager

    manager = KernelManager()
    manager.kernel_cmd = None
    manager.start_kernel(env=watched.environment, cwd=str(REPOSITORY))
    client = manager.client()
    client.start_channels()
    client.wait_for_ready(timeout=60)
    pid = manager.provisioner.process.pid
    try:
        reply = execute(client, "from dskit import ranks\ngroup = ranks.start(2, 'cpu')", seconds=120)
        assert reply["status"] == "ok", reply
        watched.wait_for(lambda: len(watched.ranks(pid)) == 2, 10, "two ranks below the kernel")
        yield manager, client, pid
    finally:
        client.stop_channels()
        if manager.has_kernel:
            manager.shutdown_kernel(now=True)


def execute(client, code: str, seconds: float):
    """Run a cell and wait for its reply; the text that it printed is under "printed"."""
    message = client.execute(code)
    return reply_of(client, message, seconds)


def reply_of(client, message: str, seconds: float):
    """The reply to a cell that was sent, with what it printed."""
    until = time.monotonic() + seconds
    printed = []
    while True:
        try:
            got = client.get_iopub_msg(timeout=max(until - time.monotonic(), 0.01))
        except queue.Empty:
            raise AssertionError(
                f"the cell had not ended after {seconds} s; it printed {printed[-5:]}"
            ) from None
        if got["parent_header"].get("msg_id") != message:
            continue
        if got["msg_type"] == "stream":
            printed.append(got["content"]["text"])
        elif got["msg_type"] == "error":
            printed.append("\n".join(got["content"]["traceback"]))
        elif got["msg_type"] == "status" and got["content"]["execution_state"] == "idle":
            break
    while (answer := client.get_shell_msg(timeout=10))["parent_header"].get("msg_id") != message:
        pass  # an answer to an earlier request
    return {**answer["content"], "printed": "".join(printed)}


@pytest.fixture
def notebook(tmp_path):
    """Write a notebook with these code cells and return its path."""

    def write(*cells, name="fault"):
        made = nbformat.v4.new_notebook(cells=[nbformat.v4.new_code_cell(cell) for cell in cells])
        made.metadata["kernelspec"] = {"name": "python3", "language": "python", "display_name": "Python 3"}
        path = tmp_path / f"{name}.ipynb"
        nbformat.write(made, path)
        return path

    return write
