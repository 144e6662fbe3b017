"""A kernel with ranks, ended or interrupted in every way that a person or a machine has."""

import os
import signal
import time

from conftest import execute, reply_of

WAIT = "%%px\nimport time\nprint('waiting', flush=True)\ntime.sleep(600)"


def begin_waiting(client, watched, pid):
    """Start a cell that never ends, and return once its ranks are in it."""
    message = client.execute(WAIT)
    while True:
        got = client.get_iopub_msg(timeout=30)
        if got["msg_type"] == "stream" and "waiting" in got["content"]["text"]:
            return message


def test_n7_after_a_kernel_restart_nothing_of_the_old_ranks_is_left(kernel, watched):
    manager, client, pid = kernel
    begin_waiting(client, watched, pid)
    watched.look(pid)
    manager.restart_kernel(now=True)
    client.wait_for_ready(timeout=60)
    manager.shutdown_kernel(now=True)
    watched.assert_nothing_left()


def test_n7_after_a_kernel_is_killed_nothing_is_left(kernel, watched):
    _, client, pid = kernel
    begin_waiting(client, watched, pid)
    watched.look(pid)
    os.kill(pid, signal.SIGKILL)
    watched.assert_nothing_left()


def test_after_a_normal_end_nothing_is_left(kernel, watched):
    manager, client, pid = kernel
    assert execute(client, "%%px\nimport torch\nprint(torch.ones(1).item())", 60)["status"] == "ok"
    watched.look(pid)
    manager.shutdown_kernel()
    watched.assert_nothing_left()


def test_an_interrupt_ends_the_cell_and_its_ranks_and_the_kernel_goes_on(kernel, watched):
    manager, client, pid = kernel
    message = begin_waiting(client, watched, pid)
    old = watched.ranks(pid)
    began = time.monotonic()
    manager.interrupt_kernel()
    reply = reply_of(client, message, 15)
    assert reply["status"] == "error" and reply["ename"] == "KeyboardInterrupt"
    assert time.monotonic() - began < 15
    watched.wait_for(lambda: not any(p.is_running() for p in old.values()), 15, "the ranks were still there")
    again = execute(client, "%%px\n1", 15)
    assert "a cell was interrupted" in again["printed"], "the message says why there are no ranks"
    assert execute(client, "group = ranks.start(2, 'cpu')\ngroup.run('print(1)')", 60)["status"] == "ok"
    watched.look(pid)
    manager.shutdown_kernel()
    watched.assert_nothing_left()


def test_ranks_that_lose_their_warden_end_and_the_next_start_works(kernel, watched):
    _, client, pid = kernel
    [warden] = [p for p in watched.look(pid) if p.ppid() == pid and "warden" in " ".join(p.cmdline())]
    warden.send_signal(signal.SIGKILL)
    reply = execute(client, WAIT, 30)
    assert reply["status"] == "error" and "warden" in reply["printed"]
    assert execute(client, "group = ranks.start(2, 'cpu')\ngroup.run('print(1)')", 120)["status"] == "ok"


def test_the_sessions_files_and_ports_are_for_this_user_alone(kernel, watched):
    import stat

    _, _, pid = kernel
    for path in watched.folder.iterdir():
        assert stat.S_IMODE(path.stat().st_mode) & 0o077 == 0, f"{path.name} can be entered by others"
    for process in watched.look(pid):
        for connection in process.net_connections("inet"):
            if connection.status == "LISTEN":
                assert connection.laddr.ip in ("127.0.0.1", "::1"), (
                    f"{process.name()} listens on {connection.laddr}"
                )


def test_a_stranger_without_the_key_cannot_run_code_on_the_ranks(kernel, watched):
    import json

    import pytest
    import zmq

    _, client, _ = kernel
    [path] = watched.folder.glob("dskit-*/profile/security/ipcontroller-client.json")
    known = json.loads(path.read_text())
    assert known["key"] and known["interface"] == "tcp://127.0.0.1"
    stolen = watched.folder / "stolen.json"
    stolen.write_text(json.dumps(known | {"key": "0" * len(known["key"])}))
    import ipyparallel

    with pytest.raises((TimeoutError, zmq.ZMQError, ipyparallel.error.TimeoutError, OSError)):
        ipyparallel.Client(connection_info=str(stolen), timeout=3)
    stolen.unlink()
    assert execute(client, "group.run('print(1)')", 30)["status"] == "ok"
