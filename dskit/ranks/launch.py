"""``dskit run``: an unmodified script on several ranks, under torchrun, with the kit's placement and guard."""

import os
import sys
from pathlib import Path

from dskit.errors import DskitError
from dskit.ranks.checks import BACKENDS, GUARDS, check_choice, check_compiler, check_packages
from dskit.ranks.placement import Placement, choose


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
    return _torchrun(placement, ranks, [guard, backend, script, *args])


def _check_guard(guard: str) -> None:
    """Refuse a switch that every rank would refuse, before any is started."""
    from dskit.guard import check_switchable

    if guard != "auto":
        check_switchable(guard)


def _torchrun(placement: Placement, ranks: int, rank_args: list[str]) -> int:
    from torch.distributed import run
    from torch.distributed.elastic.multiprocessing.errors import ChildFailedError

    os.environ.update(placement.environment)
    command = ["--standalone", f"--nproc-per-node={ranks}", "--module", "dskit.ranks.script"]
    try:
        run.run(run.parse_args([*command, placement.accelerator, *rank_args]))
    except ChildFailedError as error:
        rank, failure = error.get_first_failure()
        status = failure.exitcode
        how = f"was ended by signal {-status}" if status < 0 else f"exited with status {status}"
        print(f"dskit: rank {rank} {how}; the other ranks were stopped.", file=sys.stderr)
        return 128 - status if status < 0 else status
    return 0
