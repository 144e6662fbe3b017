"""What a rank process does before the user's code: the CPU runtime, the guard, the default backend."""

import logging
import os
import sys
import warnings


def limit_orphans() -> None:
    """Ask Linux to end this process when its parent ends, so that no rank outlives its run."""
    if not sys.platform.startswith("linux"):
        return
    import ctypes
    import signal

    set_parent_death_signal = 1  # PR_SET_PDEATHSIG
    ctypes.CDLL(None, use_errno=True).prctl(set_parent_death_signal, signal.SIGKILL)


def prepare(accelerator: str, guard: str = "auto", backend: str = "auto", quiet: bool = False) -> None:
    """Make this process a rank: import DeepSpeed, adapt it to the device, switch the guard.

    Args:
        accelerator: "cpu" or "cuda".
        guard: "on", "off" (the condition taken out), or "auto" (repaired only where it is needed).
        backend: what ``engine.compile()`` uses when it is called without one; "auto" leaves DeepSpeed's.
        quiet: hide DeepSpeed's informational messages.

    Raises:
        DskitError: the release cannot be served or switched.
    """
    # The old names are called inside DeepSpeed; nobody who reads this output can change that.
    warnings.filterwarnings("ignore", r".*torch\.distributed.*is deprecated", FutureWarning)
    if accelerator == "cpu":
        os.environ["DS_ACCELERATOR"] = "cpu"  # before the import, which chooses one and complains otherwise
    import deepspeed

    if quiet:
        deepspeed.utils.logger.setLevel(logging.WARNING)
    if accelerator == "cpu":
        import dskit.cpu

        dskit.cpu.install()
    switch_guard(guard)
    if backend != "auto":
        default_backend(backend)


def switch_guard(guard: str) -> None:
    """Switch the guard as asked; "auto" says on rank 0 what it did, and nothing if nothing was needed."""
    from dskit import guard as switch

    if guard == "on":
        switch.on()
    elif guard == "off":
        switch.off()
    elif switch.state().affected:
        state = switch.on()
        if os.environ.get("RANK", "0") == "0":
            where = f"{state.file.name}:{state.line}"
            print(f"dskit: DeepSpeed {state.release} lacks the frozen-parameter condition at {where}; "
                  "it is on in this process.", file=sys.stderr)  # fmt: skip


def default_backend(backend: str) -> None:
    """Set the backend of ``engine.compile()`` for callers that name none."""
    import inspect

    from deepspeed.runtime.engine import DeepSpeedEngine

    compile_ = DeepSpeedEngine.compile
    # A default is bound when the function is defined, so the accelerator's answer is too late here.
    names = [p.name for p in inspect.signature(compile_).parameters.values() if p.default is not p.empty]
    defaults = dict(zip(names, compile_.__defaults__, strict=True)) | {"backend": backend}
    compile_.__defaults__ = tuple(defaults[name] for name in names)
