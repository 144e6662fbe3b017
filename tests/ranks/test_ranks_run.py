"""``dskit run``: the report's script with the guard off and on, and everything that is refused."""

import os
import re
import sys

import pytest

from dskit import guard

REPRO = "notebooks/repro.py"


@pytest.fixture(scope="module")
def crash(dskit_run):
    return dskit_run("--ranks", 2, "--device", "cpu", "--guard", "off", REPRO, timeout=180)


def test_g1_without_the_guard_every_rank_raises_the_reported_error(crash):
    assert crash.returncode not in (0, 2)
    assert "Ranks 0 and 1 failed:" in crash.stderr
    assert crash.stderr.count("\nKeyError: 0\n") == 1, "the same error is shown once"
    assert "ok" not in crash.stdout.split()


def test_the_traceback_goes_through_the_installed_file_at_the_lookups_line(crash):
    state = guard.state()
    frames = re.findall(r'File "([^"]+)", line (\d+), in (\S+)', crash.stderr)
    assert frames[-1] == (str(state.file), str(state.line), "init_z3")
    assert frames[0][0] == REPRO, "the traceback starts in the user's script"


def test_g1_with_the_guard_both_ranks_come_to_the_end(dskit_run):
    fixed = dskit_run("--ranks", 2, "--device", "cpu", "--guard", "on", REPRO, timeout=240)
    assert fixed.returncode == 0, fixed.stderr
    assert fixed.stdout.split().count("ok") == 2


def test_arguments_reach_the_script_and_its_status_comes_back(dskit_run, tmp_path):
    script = tmp_path / "leave.py"
    script.write_text(
        "import os, sys\n"
        "names = 'RANK WORLD_SIZE LOCAL_RANK MASTER_ADDR MASTER_PORT'.split()\n"
        "print('SAID', __name__, sys.argv[1:], [n for n in names if n not in os.environ], flush=True)\n"
        "sys.exit(7)\n"
    )
    left = dskit_run("--ranks", 1, "--device", "cpu", script, "--steps", "3", "-x")
    assert left.returncode == 7
    assert "SAID __main__ ['--steps', '3', '-x'] []" in left.stdout
    assert "rank 0 exited with status 7" in left.stderr


def without(package, tmp_path):
    """An environment in which a package cannot be found."""
    (tmp_path / "sitecustomize.py").write_text(
        "import importlib.machinery as m\n"
        "find = m.PathFinder.find_spec\n"
        f"hide = lambda name, *a: None if name == {package!r} else find(name, *a)\n"
        "m.PathFinder.find_spec = staticmethod(hide)\n"
    )
    return os.environ | {"PYTHONPATH": str(tmp_path)}


def no_compiler(tmp_path):
    return {**os.environ, "PATH": str(tmp_path), "CXX": ""}


REFUSALS = {
    "bad device": (["--device", "tpu", REPRO], None, "'tpu'"),
    "world size 0": (["--ranks", "0", REPRO], None, "0"),
    "missing script": (["no/such/file.py"], None, "no/such/file.py"),
    "a folder": (["notebooks"], None, "notebooks"),
    "bad guard": (["--guard", "maybe", REPRO], None, "'maybe'"),
    "bad backend": (["--backend", "nvfuser", REPRO], None, "'nvfuser'"),
    "ranks not a number": (["--ranks", "two", REPRO], None, "--ranks"),
    "no script": ([], None, "SCRIPT"),
    "no compiler": (["--device", "cpu", REPRO], no_compiler, "g++"),
    "no scipy": (["--device", "cpu", REPRO], lambda t: without("scipy", t), "scipy"),
    "no deepspeed": (["--device", "cpu", REPRO], lambda t: without("deepspeed", t), "deepspeed"),
}


@pytest.mark.parametrize("name", REFUSALS)
def test_refused_with_status_2_and_no_traceback(dskit_run, tmp_path, name):
    arguments, environment, said = REFUSALS[name]
    refused = dskit_run(*arguments, env=environment(tmp_path) if environment else None)
    assert refused.returncode == 2, refused.stderr
    assert said in refused.stderr
    assert "Traceback" not in refused.stderr and "Traceback" not in refused.stdout


def test_e6_without_a_compiler_the_eager_backend_trains(dskit_run, tmp_path):
    trained = dskit_run(
        "--device",
        "cpu",
        "--guard",
        "on",
        "--backend",
        "eager",
        REPRO,
        env=no_compiler(tmp_path),
        timeout=240,
    )
    assert trained.returncode == 0, trained.stderr
    assert trained.stdout.split().count("ok") == 2


def test_a_rank_that_raises_stops_the_others(dskit_run, tmp_path):
    script = tmp_path / "one_raises.py"
    script.write_text(
        "import os, time\n"
        "if os.environ['RANK'] == '1':\n"
        "    raise ValueError('rank one had enough')\n"
        "time.sleep(600)\n"
    )
    stopped = dskit_run("--device", "cpu", script, timeout=90)
    assert stopped.returncode == 1
    assert "ValueError: rank one had enough" in stopped.stderr and "rank 1 exited" in stopped.stderr


def test_importing_the_command_line_is_light():
    import subprocess

    code = "import sys, dskit.cli, dskit.ranks.launch; print({'torch', 'deepspeed'} & set(sys.modules))"
    assert (
        subprocess.run([sys.executable, "-c", code], capture_output=True, text=True).stdout.strip() == "set()"
    )
