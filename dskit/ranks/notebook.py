"""Start ranks behind a notebook.

One DeepSpeed engine needs one fresh group: ``init_z3`` changes the process for good. ``start()`` ends the
group before it and gives a fresh one, in about a second once a session is warm.
"""

import time

from dskit.ranks import checks, engine, environ, placement
from dskit.ranks.group import RankGroup
from dskit.ranks.session import RanksError, Session

_session: Session | None = None
_current: RankGroup | None = None


def start(
    world_size: int = 2,
    device: str = "auto",
    *,
    guard: str = "auto",
    backend: str = "auto",
    start_deadline: float = 120.0,
    cell_deadline: float = 300.0,
    collective_deadline: float = 600.0,
    **parameters,
) -> RankGroup:
    """Start a fresh group of ranks for this notebook and make ``%%px`` cells run on it.

    A group that runs already is ended first.

    Args:
        world_size: number of ranks.
        device: "auto", "cuda", "cuda-shared" or "cpu".
        guard: "on", "off", or "auto" (the fix only where the installed release needs it).
        backend: "inductor", "eager", or "auto" (DeepSpeed's default).
        start_deadline: seconds until the ranks must answer.
        cell_deadline: seconds that a cell may take unless it says otherwise.
        collective_deadline: seconds that a collective waits for the other ranks.
        parameters: variables to set on every rank, beside world_size, device, guard and backend.

    Raises:
        DskitError: an argument is bad, or something is missing; nothing was started.
        RanksError: the ranks did not come up.
    """
    global _current
    checks.check_choice("guard", guard, checks.GUARDS)
    checks.check_choice("backend", backend, checks.BACKENDS)
    place = placement.choose(device, world_size)
    checks.check_packages()
    checks.check_compiler(backend, place.accelerator)
    if _current is not None:
        _current.stop("a fresh group was started")
    began = time.monotonic()
    _current = group = _bring_up(place, world_size, start_deadline, cell_deadline)
    port = group.apply(_open_store, rank=0)
    group.apply(_prepare, port, place.accelerator, guard, backend, collective_deadline)
    group.push(world_size=world_size, device=place.device, guard=guard, backend=backend, **parameters)
    _register_magic()
    took = time.monotonic() - began
    noun = "rank" if world_size == 1 else "ranks"
    print(f"{world_size} {noun} on {place.device} after {took:.1f} s. {place.reason}.")
    return group


def current() -> RankGroup:
    """The group that ``%%px`` cells run on.

    Raises:
        RanksError: no group was started in this kernel.
    """
    if _current is None:
        raise RanksError(
            "There are no ranks to run this on.", "None were started in this kernel.", "Call ranks.start()."
        )
    return _current


def stop() -> None:
    """End the ranks of this kernel and everything that stood ready for them."""
    global _session, _current
    if _current is not None:
        _current.stop()
    if _session is not None:
        _session.close()
    _session = _current = None


def _bring_up(place, world_size: int, start_deadline: float, cell_deadline: float) -> RankGroup:
    import ipyparallel

    global _session
    if _session is not None and (not _session.alive or _session.placement != place):
        _session.close()
        _session = None
    if _session is None:
        _session = Session(place, start_deadline)
    shared = place.device == "cuda-shared"
    # The controller does not hear of ranks that were ended, so each group gets ids of its own.
    engines = _session.new_engine_ids(world_size)
    variables = [
        environ.rank_environment(rank, world_size, shared) | {engine.ID_VARIABLE: str(engines[rank])}
        for rank in range(world_size)
    ]
    pids = _session.fork(variables, start_deadline)
    client = ipyparallel.Client(
        connection_info=str(_session.connection_file), timeout=start_deadline, profile_dir=_session.folder
    )
    group = RankGroup(world_size, place, cell_deadline, _session, pids, client, engines)
    try:
        _await_engines(group, start_deadline)
    except BaseException:
        group.stop("they did not start")
        raise
    return group


def _await_engines(group: RankGroup, deadline: float) -> None:
    until = time.monotonic() + deadline
    while missing := [r for r, engine in enumerate(group._engines) if engine not in group._client.ids]:
        lost = [f"rank {r} {how}" for r in missing if (how := group._session.fate(group._pids[r]))]
        if lost or time.monotonic() > until:
            raise RanksError(
                "The ranks did not come up." if lost else f"The ranks did not come up within {deadline:g} s.",
                f"Found: {', '.join(lost) or 'missing ' + ', '.join(f'rank {r}' for r in missing)}. "
                + group._session.last_words(),
                "Give start_deadline more seconds, or look at the machine's memory and load.",
            )
        time.sleep(0.02)


def _register_magic() -> None:
    from dskit.ranks.magic import register

    register()


# These two run on the ranks.


def _open_store() -> int:
    from dskit.ranks.store import open_store

    return open_store()


def _prepare(port: int, accelerator: str, guard: str, backend: str, collective_deadline: float) -> None:
    from dskit.ranks.prepare import prepare
    from dskit.ranks.store import join_store

    join_store(port)
    prepare(accelerator, guard, backend, collective_deadline, quiet=True)
