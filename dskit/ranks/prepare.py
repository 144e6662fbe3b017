"""What a rank process does before the user's code: the CPU runtime, the guard, the default backend."""

import datetime
import inspect
import logging
import os
import sys
import warnings


def prepare(
    accelerator: str,
    guard: str = "auto",
    backend: str = "auto",
    collective_deadline: float | None = None,
    quiet: bool = False,
) -> None:
    """Make this process a rank: import DeepSpeed, adapt it to the device, switch the guard.

    Args:
        accelerator: "cpu" or "cuda".
        guard: "on", "off" (the condition taken out), or "auto" (repaired only where it is needed).
        backend: what ``engine.compile()`` uses when it is called without one; "auto" leaves DeepSpeed's.
        collective_deadline: seconds that a collective waits for the other ranks; None leaves DeepSpeed's.
        quiet: hide DeepSpeed's informational messages.

    Raises:
        DskitError: the release cannot be served or switched.
    """
    # The old names are called inside DeepSpeed; nobody who reads this output can change that.
    warnings.filterwarnings("ignore", r".*torch\.distributed.*is deprecated", FutureWarning)
    if accelerator == "cpu":
        os.environ["DS_ACCELERATOR"] = "cpu"  # before the import, which chooses one and complains otherwise
    import deepspeed
    from deepspeed.runtime.engine import DeepSpeedEngine

    if quiet:
        from dskit.ranks.quiet import hush_deepcompile

        deepspeed.utils.logger.setLevel(logging.WARNING)
        hush_deepcompile()
    if accelerator == "cpu":
        import dskit.cpu

        dskit.cpu.install()
    switch_guard(guard)
    if backend != "auto":
        set_default(DeepSpeedEngine.compile, "backend", backend)
    if collective_deadline is not None:
        limit = datetime.timedelta(seconds=collective_deadline)
        set_default(deepspeed.comm.comm.init_distributed, "timeout", limit)


def switch_guard(guard: str) -> None:
    """Switch the guard as asked; "auto" says on rank 0 what it did, and nothing if nothing was needed.

    Raises:
        GuardError: "on" or "off" was asked for and the installed release cannot be switched.
    """
    from dskit import guard as switch

    if guard == "on":
        switch.on()
    elif guard == "off":
        switch.off()
    else:
        said = _repair_if_needed()
        if said and os.environ.get("RANK", "0") == "0":
            print(f"dskit: {said}", file=sys.stderr)


def _repair_if_needed() -> str:
    from dskit import guard as switch

    state = switch.state()
    if not state.affected:
        return "" if state.affected is False else f"init_z3 was left as it is. {state.detail}"
    try:
        switch.on()
    except switch.GuardError as error:  # a model with nothing frozen trains all the same
        return f"the guard is off. {error}"
    place = f"{state.file.name}, line {state.line}"
    return (
        f"DeepSpeed {state.release} looks frozen parameters up in a map that lacks them ({place}); "
        "the missing condition is on in this process."
    )


def set_default(function, parameter: str, value) -> None:
    """Change a parameter's default, for callers that do not give it.

    A default is bound when the function is defined, so the place that it was taken from is too late.
    """
    parameters = inspect.signature(function).parameters.values()
    names = [p.name for p in parameters if p.default is not p.empty]
    defaults = dict(zip(names, function.__defaults__, strict=True)) | {parameter: value}
    function.__defaults__ = tuple(defaults[name] for name in names)
