"""Keep DeepCompile's progress prints out of a notebook's cells; its warnings and failures stay."""

import functools

# Tables for DeepSpeed's developers: the all-gather profile, the prefetch pass's memory figures.
_CHATTER = ("size: ", "schedule_prefetch graph_id=", "Launching compile passes")
_KEPT = ("incomplete", "skipping")


def is_chatter(message: str) -> bool:
    """Whether a printed line is one of DeepCompile's progress prints."""
    return message.startswith(_CHATTER) and not any(word in message for word in _KEPT)


def hush_deepcompile() -> None:
    """Filter what DeepCompile's passes print in this process."""
    from deepspeed.compile import backend
    from deepspeed.compile.passes import prefetch
    from deepspeed.compile.profilers import comm_profile

    comm_profile.print = _filtered(print)  # a module's own name comes before the built-in
    prefetch.print_rank_0 = _filtered(prefetch.print_rank_0)
    backend.log_rank0 = _filtered(backend.log_rank0)


def _filtered(show):
    @functools.wraps(show)
    def filtered(message="", *args, **kwargs):
        if not is_chatter(str(message)):
            show(message, *args, **kwargs)

    return filtered
