"""One rank of ``dskit run``: prepare the process, then run the user's script as ``__main__``.

torchrun starts it as ``python -m dskit.ranks.script ACCELERATOR GUARD BACKEND SCRIPT [ARGS]...``.
"""

import os
import runpy
import sys
from pathlib import Path

from dskit.errors import DskitError
from dskit.ranks.prepare import limit_orphans, prepare


def main(argv: list[str]) -> int:
    """Run the script; returns the exit status."""
    limit_orphans()
    for stream in (sys.stdout, sys.stderr):
        # torchrun runs ranks unbuffered, and two ranks' lines would run into each other.
        stream.reconfigure(line_buffering=True, write_through=False)
    accelerator, guard, backend, script, *args = argv
    if os.environ.get("NCCL_MULTI_RANK_GPU_ENABLE") == "1":
        os.environ["LOCAL_RANK"] = "0"  # every rank uses the one visible GPU
    try:
        prepare(accelerator, guard, backend)
    except DskitError as error:
        print(f"Rank {os.environ.get('RANK', '0')} could not start. {error}", file=sys.stderr)
        return error.exit_status
    sys.argv = [script, *args]
    sys.path[0] = str(Path(script).resolve().parent)  # as if Python had been given the script
    try:
        runpy.run_path(script, run_name="__main__")
    except Exception as error:
        error.__traceback__ = _from_script(error.__traceback__, script)
        sys.excepthook(type(error), error, error.__traceback__)
        return 1
    return 0


def _from_script(traceback, script: str):
    """The traceback from the script's first frame on: the frames that ran the script say nothing."""
    first = traceback
    while first is not None and first.tb_frame.f_code.co_filename != script:
        first = first.tb_next
    return first or traceback


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
