"""A notebook's rank: an ipyparallel engine that is ended with its warden and can say where it stands."""

import faulthandler
import os
import signal
import sys
from pathlib import Path

from dskit.ranks.family import end_with_parent

# Set by the warden's client: the id under which the controller knows this rank.
ID_VARIABLE = "DSKIT_ENGINE_ID"

# A rank that starts looks this long for the controller, in seconds.
_CONTROLLER_SECONDS = 60


def stack_file(folder: Path, rank: int) -> Path:
    """Where a rank writes its Python stacks when it gets SIGUSR1."""
    return folder / f"stacks-{rank}.txt"


def run(folder: Path, accelerator: str) -> None:
    """Be an engine until the controller or the warden ends."""
    end_with_parent()
    if accelerator == "cpu":
        import torch

        # The environment of a forked rank comes too late for the thread pool of its template.
        torch.set_num_threads(int(os.environ.get("OMP_NUM_THREADS", "1")))
    rank = int(os.environ["RANK"])
    faulthandler.register(signal.SIGUSR1, file=stack_file(folder, rank).open("w"), all_threads=True)
    from ipyparallel.engine.app import IPEngine

    IPEngine.launch_instance([
        f"--profile-dir={folder / 'profile'}",
        f"--file={folder / 'profile' / 'security' / 'ipcontroller-engine.json'}",
        f"--IPEngine.wait_for_url_file={_CONTROLLER_SECONDS}",
        f"--IPEngine.id={os.environ[ID_VARIABLE]}",
        "--IPEngine.enable_nanny=False",  # a process to watch the rank; the warden does that
        "--IPEngine.max_heartbeat_misses=100000",  # the warden ends its ranks; a busy machine must not
        "--log-level=ERROR",
    ])  # fmt: skip


if __name__ == "__main__":
    run(Path(sys.argv[1]), sys.argv[2])
