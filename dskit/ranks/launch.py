"""``dskit run``: an unmodified script on ranks, under torchrun, with the kit's placement and guard."""

import contextlib
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import threading
from dataclasses import dataclass
from pathlib import Path

from dskit.errors import DskitError
from dskit.ranks.checks import BACKENDS, GUARDS, check_choice, check_compiler, check_packages
from dskit.ranks.placement import Placement, choose
from dskit.ranks.session import RanksError

_TORCHRUN_VARIABLES = {
    "RANK", "LOCAL_RANK", "WORLD_SIZE", "LOCAL_WORLD_SIZE", "GROUP_RANK", "GROUP_WORLD_SIZE",
    "MASTER_ADDR", "MASTER_PORT", "ROLE_RANK", "ROLE_WORLD_SIZE",
}  # fmt: skip


def launch(
    script: str,
    args: list[str],
    *,
    ranks: int = 2,
    device: str = "auto",
    guard: str = "auto",
    backend: str = "auto",
) -> int:
    """Run a script on ``ranks`` processes and wait for it.

    Args:
        script: path of a Python script.
        args: its arguments.
        ranks: number of rank processes.
        device: see ``dskit.ranks.placement.choose``.
        guard: "on", "off", or "auto" (the fix only where the installed release needs it).
        backend: what ``engine.compile()`` uses when the script names none; "auto" leaves DeepSpeed's.

    Returns:
        Exit status: 0, or that of the first rank that failed.

    Raises:
        DskitError: an argument is bad or something is missing; nothing was started.
    """
    check_choice("guard", guard, GUARDS)
    check_choice("backend", backend, BACKENDS)
    if not Path(script).is_file():
        raise DskitError(
            "The script was not run: there is no such file.",
            f"{script} (from {Path.cwd().name}/).",
            "Check the path.",
        )
    placement = choose(device, ranks)
    check_packages()
    check_compiler(backend, placement.accelerator)
    _check_guard(guard)
    print(f"dskit: {ranks} {'rank' if ranks == 1 else 'ranks'} on {placement.device}. {placement.reason}.",
          file=sys.stderr)  # fmt: skip
    return _supervised(placement, ranks, [guard, backend, script, *args])


def _check_guard(guard: str) -> None:
    """Refuse a switch that every rank would refuse, before any is started."""
    from dskit import guard as switch

    if guard != "auto":
        switch.diff(guard)


def _supervised(placement: Placement, ranks: int, rank_args: list[str]) -> int:
    """Run the supervisor and wait for it. It ends with this process, whatever ends this process."""
    folder = tempfile.mkdtemp(prefix="dskit-run-")
    reading, writing = os.pipe()
    command = [sys.executable, "-m", "dskit.ranks.supervisor", folder, str(reading), str(ranks)]
    try:
        process = subprocess.Popen(
            [*command, placement.accelerator, *rank_args],
            env=_clean_environment() | placement.environment,
            pass_fds=[reading],
        )
        os.close(reading)
        return _wait(process)
    finally:
        os.close(writing)
        shutil.rmtree(folder, ignore_errors=True)


def _wait(process: subprocess.Popen) -> int:
    while True:
        try:
            return process.wait()
        except KeyboardInterrupt:
            continue  # a terminal sends Ctrl-C to the ranks too; the supervisor ends them and says so
        except BaseException:
            with contextlib.suppress(ProcessLookupError):
                process.terminate()
            process.wait()
            raise


def _clean_environment() -> dict[str, str]:
    """This process's environment without an outer launcher's ranks: torchrun sets these anew."""
    return {name: value for name, value in os.environ.items() if name not in _TORCHRUN_VARIABLES}


@dataclass(frozen=True)
class ScriptRun:
    """What a script on ranks left behind: its exit status, and what it printed (both streams, in order)."""

    status: int
    output: str


def run_script(
    script: str,
    *args: str,
    ranks: int = 2,
    device: str = "auto",
    guard: str = "auto",
    backend: str = "auto",
    deadline: float = 300.0,
) -> ScriptRun:
    """``dskit run`` from a notebook: run a script on ranks, print its output as it comes, and return it.

    Args:
        script, args, ranks, device, guard, backend: as ``launch`` takes them.
        deadline: seconds after which the ranks are ended.

    Raises:
        RanksError: the deadline passed.
    """
    options = ["--ranks", str(ranks), "--device", device, "--guard", guard, "--backend", backend]
    process = subprocess.Popen(
        [sys.executable, "-m", "dskit", "run", *options, script, *args],
        stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True,
        start_new_session=True,
    )  # fmt: skip
    overran = threading.Event()

    def end() -> None:
        overran.set()
        os.killpg(process.pid, signal.SIGTERM)

    timer = threading.Timer(deadline, end)
    timer.start()
    lines = []
    try:
        for line in process.stdout:
            print(line, end="", flush=True)
            lines.append(line)
        status = process.wait()
    except BaseException:
        os.killpg(process.pid, signal.SIGTERM)
        raise
    finally:
        timer.cancel()
    if overran.is_set():
        raise RanksError(
            f"{script} was stopped after its deadline of {deadline:g} s.",
            f"It had printed {len(lines)} lines; the last was: {lines[-1].strip() if lines else '(nothing)'}",
            "Give run_script a longer deadline, or find out what the ranks wait for.",
        )
    return ScriptRun(status, "".join(lines))
