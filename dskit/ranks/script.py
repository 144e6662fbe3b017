"""One rank of ``dskit run``: prepare the process, then run the user's script as ``__main__``.

torchrun starts it as ``python -m dskit.ranks.script FOLDER ACCELERATOR GUARD BACKEND SCRIPT [ARGS]...``.
"""

import json
import os
import runpy
import sys
import time
import traceback
from pathlib import Path

from dskit.errors import DskitError
from dskit.ranks.family import end_with_parent

# A rank that failed waits this long for the others to fail alike, so that each can say why, in seconds.
_GRACE_SECONDS = 2.0


def main(argv: list[str]) -> int:
    """Run the script; returns the exit status."""
    end_with_parent()
    for stream in (sys.stdout, sys.stderr):
        # torchrun runs ranks unbuffered, and two ranks' lines would run into each other.
        stream.reconfigure(line_buffering=True, write_through=False)
    folder, accelerator, guard, backend, script, *args = argv
    if os.environ.get("NCCL_MULTI_RANK_GPU_ENABLE") == "1":
        os.environ["LOCAL_RANK"] = "0"  # every rank uses the one visible GPU
    try:
        from dskit.ranks.prepare import prepare

        prepare(accelerator, guard, backend)
    except DskitError as error:
        return _fail(Path(folder), f"The rank could not start. {error}", error.exit_status)
    sys.argv = [script, *args]
    sys.path[0] = str(Path(script).resolve().parent)  # as if Python had been given the script
    try:
        runpy.run_path(script, run_name="__main__")
    except KeyboardInterrupt:
        return 130  # Ctrl-C reaches every rank; the supervisor says so once
    except SystemExit as leaving:
        # Said before the interpreter is taken down, which takes seconds and breaks the peers' connections.
        _leave_word(Path(folder), _status_of(leaving))
        raise
    except Exception as error:
        trimmed = error.with_traceback(_from_script(error.__traceback__, script))
        return _fail(Path(folder), "".join(traceback.format_exception(trimmed)), 1)
    _leave_word(Path(folder), 0)
    _leave_the_group()
    return 0


def _leave_the_group() -> None:
    """End torch's process group before the interpreter goes: gloo's threads, still running then, abort it."""
    import torch.distributed as dist

    if dist.is_available() and dist.is_initialized():
        dist.destroy_process_group()


def _status_of(leaving: SystemExit) -> int:
    """The exit status that Python gives a ``sys.exit``: a text means 1."""
    if leaving.code is None:
        return 0
    return leaving.code & 0xFF if isinstance(leaving.code, int) else 1


def _from_script(first, script: str):
    """The traceback from the script's first frame on: the frames that ran the script say nothing."""
    found = first
    while found is not None and found.tb_frame.f_code.co_filename != script:
        found = found.tb_next
    return found or first


def _fail(folder: Path, text: str, status: int) -> int:
    """Leave word of a failure, and give the others a moment to fail alike."""
    _leave_word(folder, status, text)
    until = time.monotonic() + _GRACE_SECONDS
    everybody = range(int(os.environ["WORLD_SIZE"]))
    while time.monotonic() < until and not all(rank_word(folder, rank).exists() for rank in everybody):
        time.sleep(0.05)
    return status


def _leave_word(folder: Path, status: int, text: str | None = None) -> None:
    """Tell the supervisor how this rank ends; it shows each error once."""
    rank = int(os.environ["RANK"])
    word = {"rank": rank, "time": time.time(), "status": status, "text": text}
    part = rank_word(folder, rank).with_suffix(".part")
    part.write_text(json.dumps(word), encoding="utf-8")
    part.replace(rank_word(folder, rank))  # whole or not at all


def rank_word(folder: Path, rank: int) -> Path:
    """Where a rank writes how it ends: JSON with rank, time (seconds since 1970), status, and for an error
    the text of its traceback."""
    return folder / f"ended-{rank}.json"


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
