"""Ranks behind a notebook: cells, parameters, failures, deadlines, and that nothing is left."""

import time

import psutil
import pytest

from dskit import ranks
from dskit.errors import DskitError
from dskit.ranks import notebook


def start(**options):
    return ranks.start(options.pop("world_size", 2), "cpu", **options)


@pytest.fixture(scope="module", autouse=True)
def session():
    """One warm session for the module; at the end nothing of it may be left."""
    yield
    open_session = notebook._session
    if open_session is None:
        return
    folder, process = open_session.folder, psutil.Process(open_session._process.pid)
    family = [process, *process.children(recursive=True)]
    open_session.close()
    notebook._session = notebook._current = None
    _, alive = psutil.wait_procs(family, timeout=15)
    assert not alive and not folder.exists()


@pytest.fixture(scope="module")
def group(session):
    return start(guard="on", steps=3, seed=11)


def test_parameters_are_pushed_to_every_rank(group):
    assert group.pull("(steps, seed, world_size, device)") == [(3, 11, 2, "cpu")] * 2
    group.push(dtype="fp32")
    assert group.pull("dtype") == ["fp32", "fp32"]


def test_a_rank_has_torchruns_variables_and_its_own_number(group):
    names = ["RANK", "LOCAL_RANK", "WORLD_SIZE", "LOCAL_WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT"]
    first, second = group.pull(f"[__import__('os').environ[n] for n in {names}]")
    assert first[:4] == ["0", "0", "2", "2"] and second[:4] == ["1", "1", "2", "2"]
    assert first[4:] == second[4:] and first[4] == "127.0.0.1"


def test_a_collective_works_and_ranks_see_the_cpu_runtime_and_the_guard(group, capsys):
    group.run(
        "import deepspeed, torch, dskit.cpu\n"
        "from dskit import guard\n"
        "deepspeed.init_distributed()\n"
        "total = torch.tensor(float(deepspeed.comm.get_rank() + 1))\n"
        "deepspeed.comm.all_reduce(total)\n"
        "print('sum', total.item(), dskit.cpu.installed(), guard.state().affected)\n"
    )
    assert "[all ranks] sum 3.0 True False" in capsys.readouterr().out


def test_different_lines_are_labelled_by_rank_and_equal_ones_shown_once(group, capsys):
    group.run("import os\nprint('same')\nprint('I am', os.environ['RANK'])")
    lines = capsys.readouterr().out.splitlines()
    assert lines.count("[all ranks] same") == 1
    assert "[rank 0] I am 0" in lines and "[rank 1] I am 1" in lines


def test_output_comes_while_the_cell_runs(group, capsys):
    began = time.monotonic()
    arrived = {}

    class Watch:
        def write(self, text):
            arrived.setdefault(text.strip(), time.monotonic() - began)

        def flush(self):
            pass

    import sys

    real, sys.stdout = sys.stdout, Watch()
    try:
        group.run("import time\nprint('early', flush=True)\ntime.sleep(3)\nprint('late')")
    finally:
        sys.stdout = real
    assert arrived["[all ranks] late"] - arrived["[all ranks] early"] > 1.5


def test_two_groups_are_two_sets_of_processes(group):
    old = group.pull("__import__('os').getpid()")
    fresh = start(guard="on")
    assert set(old).isdisjoint(fresh.pull("__import__('os').getpid()"))
    gone = time.monotonic() + 10
    while any(psutil.pid_exists(pid) for pid in old) and time.monotonic() < gone:
        time.sleep(0.05)
    assert not any(psutil.pid_exists(pid) for pid in old)
    with pytest.raises(ranks.RanksError, match="a fresh group was started"):
        group.run("1")


def test_n5_one_rank_raises_while_the_other_waits_in_a_collective(session):
    two = start()
    began = time.monotonic()
    with pytest.raises(ranks.RankFailure) as failure:
        two.run(
            "import deepspeed, os\n"
            "deepspeed.init_distributed()\n"
            "if os.environ['RANK'] == '1':\n"
            "    raise ValueError('only here')\n"
            "deepspeed.comm.barrier()\n"
        )
    assert time.monotonic() - began < 30
    assert str(failure.value).startswith("Rank 1 failed:") and "only here" in str(failure.value)
    with pytest.raises(ranks.RanksError, match="after rank 1 failed"):
        two.run("1")


def test_the_same_error_on_all_ranks_is_shown_once(session):
    with pytest.raises(ranks.RankFailure) as failure:
        start().run("raise KeyError(0)")
    assert str(failure.value).count("KeyError: 0") == 1
    assert "Ranks 0 and 1 failed" in str(failure.value)


def test_a_rank_that_is_killed_is_named(session):
    two = start()
    with pytest.raises(ranks.RankFailure, match=r"Rank 1 .*signal 9"):
        two.run("import os, time\nif os.environ['RANK'] == '1':\n    os.kill(os.getpid(), 9)\ntime.sleep(60)")


def test_n4_a_cell_that_never_returns_is_stopped_with_the_stacks(session):
    two = start()
    began = time.monotonic()
    with pytest.raises(ranks.RanksError) as overrun:
        two.run("def wait_for_godot():\n    import time\n    time.sleep(600)\nwait_for_godot()", deadline=2)
    assert time.monotonic() - began < 20
    assert "deadline of 2 s" in str(overrun.value)
    assert str(overrun.value).count("wait_for_godot") == 2, "one stack for each rank"


def test_an_expected_error_is_shown_and_spends_the_group(session, capsys):
    two = start()
    two.run("raise KeyError(0)", raises="KeyError")
    assert "Ranks 0 and 1" in capsys.readouterr().out
    with pytest.raises(ranks.RanksError, match="KeyError"):
        two.run("1")


@pytest.mark.parametrize(
    "code", ["1 + 1", "raise ValueError(1)", "import os\nif os.environ['RANK'] == '0':\n    {}[0]"]
)
def test_an_expected_error_that_does_not_come_on_every_rank_fails(session, code):
    with pytest.raises(ranks.RankFailure, match="Every rank was to raise KeyError"):
        start().run(code, raises="KeyError")


@pytest.mark.parametrize(
    ("arguments", "options"),
    [
        ((0, "cpu"), {}),
        ((2, "tpu"), {}),
        ((2, "cpu"), {"guard": "perhaps"}),
        ((2, "cpu"), {"backend": "fast"}),
    ],
)
def test_bad_arguments_are_refused_and_leave_the_running_group_alone(session, arguments, options):
    running = start()
    with pytest.raises(DskitError):
        ranks.start(*arguments, **options)
    assert running.pull("1") == [1, 1]


def test_ranks_share_the_memory_of_their_template(session):
    two = start()
    for pid in two._pids:
        memory = psutil.Process(pid).memory_full_info()
        assert memory.pss < 0.7 * memory.rss, "torch and DeepSpeed should be shared between the ranks"


def test_the_sessions_folder_is_for_this_user_alone(session):
    start()
    assert notebook._session.folder.stat().st_mode & 0o077 == 0
