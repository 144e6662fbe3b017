"""A group of ranks behind a notebook: start it, run code on it, stop it.

One DeepSpeed engine needs one fresh group: ``init_z3`` changes the process for good. ``start()`` ends the
group before it and gives a fresh one, in about a second once a session is warm.
"""

import contextlib
import time
from dataclasses import dataclass, field

from dskit.errors import DskitError
from dskit.ranks import checks, environ, placement
from dskit.ranks.engine import stack_file
from dskit.ranks.output import OutputPrinter
from dskit.ranks.session import RanksError, Session

# After a rank failed, the others have this long to end by themselves (they often fail alike), in seconds.
_GRACE_SECONDS = 2.0

_session: Session | None = None
_current: "RankGroup | None" = None


class RankFailure(RanksError):
    """A cell failed on a rank; shown without the kernel's own traceback, which says nothing."""

    def _render_traceback_(self):
        return str(self).splitlines()


@dataclass
class RankGroup:
    """Rank processes that a notebook's ``%%px`` cells run on.

    Attributes:
        ranks: the world size.
        placement: where they run, and why.
        cell_deadline: seconds that a cell may take unless it says otherwise.
    """

    ranks: int
    placement: placement.Placement
    cell_deadline: float
    _session: Session = field(repr=False)
    _pids: list[int] = field(repr=False)
    _client: object = field(repr=False)
    _stopped_because: str = field(default="", repr=False)

    def run(self, code: str, deadline: float | None = None, raises: str | None = None) -> None:
        """Run code on every rank and print what the ranks print, labelled.

        Args:
            code: Python source, as in a cell.
            deadline: seconds; the group's ``cell_deadline`` if None.
            raises: name of an exception that every rank must raise; its message is shown, and the group
                is stopped, for an engine that failed leaves its process spent.

        Raises:
            RankFailure: a rank raised or ended, or (with ``raises``) did not raise that.
            RanksError: the deadline passed; the message says where each rank was.
        """
        self._check_running()
        deadline = deadline or self.cell_deadline
        results = self._view().execute(code, silent=False, block=False)
        printer = OutputPrinter(self.ranks)
        failed = self._follow(results, printer, deadline)
        if failed is not None and not raises:
            self._fail(results, printer, f"after rank {failed} failed")
        errors = self._errors(results)
        if raises:
            self._check_raised(errors, raises)
        elif errors:
            self._fail(results, printer, "after a cell failed")

    def push(self, **values) -> None:
        """Set variables on every rank (papermill gives parameters to the kernel alone)."""
        self._check_running()
        self._client[:].push(values, block=True)

    def pull(self, expression: str, rank: int | None = None):
        """Value of an expression: a list over the ranks in order, or one rank's."""
        self._check_running()
        values = self._view().pull(expression, block=True) if expression.isidentifier() else None
        if values is None:
            values = self._view().apply_sync(_evaluate, expression)
        return values if rank is None else values[rank]

    def stop(self, because: str = "they were stopped by stop()") -> None:
        """End the ranks. Safe to call twice."""
        if not self._stopped_because:
            self._stopped_because = because
            with contextlib.suppress(Exception):
                self._client.close(linger=0)
            if self._session.alive:
                self._session.kill(self._pids)

    # ---- following a cell -----------------------------------------------------------------------------

    def _follow(self, results, printer: OutputPrinter, deadline: float) -> int | None:
        """Print output until the cell is done; returns the first rank that failed, or None."""
        until = time.monotonic() + deadline
        failed, give_up = None, None
        try:
            while not results.ready():
                results.wait(0.05)
                printer.update(*self._output(results, "stdout", "stderr"))
                if failed is None:
                    failed = self._first_failure(results)
                    give_up = time.monotonic() + _GRACE_SECONDS
                elif time.monotonic() > give_up:
                    return failed
                if time.monotonic() > until:
                    self._overrun(results, printer, deadline)
            results.wait_for_output(2.0)
        except KeyboardInterrupt:
            self.stop("the cell was interrupted")
            raise
        finally:
            printer.update(*self._output(results, "stdout", "stderr"))
            printer.finish(*self._output(results, "outputs"))
        return failed

    def _output(self, results, *keys: str) -> list[list]:
        """For each key, what every rank sent so far; unlike the result's own attributes this never waits."""
        return [[rank[key] for rank in results.metadata] for key in keys]

    def _first_failure(self, results) -> int | None:
        for rank, pid in enumerate(self._pids):
            if pid in self._session.exits:
                return rank
        return next(iter(self._errors(results)), None)

    def _errors(self, results) -> dict[int, object]:
        return {rank: told["error"] for rank, told in enumerate(results.metadata) if told["error"]}

    def _fail(self, results, printer: OutputPrinter, because: str):
        errors = self._errors(results)
        dead = {rank: self._session.exits[pid] for rank, pid in enumerate(self._pids)
                if pid in self._session.exits}  # fmt: skip
        self.stop(f"they were stopped {because}")
        raise RankFailure(_describe_errors(errors, dead, self.ranks)) from None

    def _check_raised(self, errors: dict[int, object], expected: str) -> None:
        named = {rank: getattr(error, "ename", type(error).__name__) for rank, error in errors.items()}
        self.stop(f"they were stopped after the {expected} that the cell shows")
        if len(named) == self.ranks and set(named.values()) == {expected}:
            print(_describe_errors(errors, {}, self.ranks))
            return
        found = ", ".join(f"rank {r}: {named.get(r, 'no error')}" for r in range(self.ranks))
        raise RankFailure(
            f"Every rank was to raise {expected}.\nFound {found}.\n"
            + _describe_errors(errors, {}, self.ranks)
        )

    def _overrun(self, results, printer: OutputPrinter, deadline: float) -> None:
        stacks = self._stacks()
        self.stop("a cell overran its deadline")
        raise RanksError(
            f"The cell was stopped after its deadline of {deadline:g} s.",
            "Where each rank was:\n" + stacks,
            "Find out why the ranks wait, or give the cell more time: %%px --deadline SECONDS.",
        )

    def _stacks(self) -> str:
        self._session.stacks(self._pids)
        time.sleep(0.5)
        texts = []
        for rank in range(self.ranks):
            with contextlib.suppress(OSError):
                text = stack_file(self._session.folder, rank).read_text(errors="replace")
                texts.append(f"--- rank {rank} ---\n{_main_thread(text)}")
        return "\n".join(texts)

    def _view(self):
        view = self._client[:]
        view.targets = list(range(self.ranks))
        return view

    def _check_running(self) -> None:
        if self._stopped_because:
            raise RanksError(
                "There are no ranks to run this on.",
                f"Found: {self._stopped_because}.",
                "Start fresh ones with ranks.start(), and run the cells that made the engine again.",
            )


def start(
    world_size: int = 2,
    device: str = "auto",
    *,
    guard: str = "auto",
    backend: str = "auto",
    start_deadline: float = 120.0,
    cell_deadline: float = 300.0,
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
    group._view().apply_sync(_prepare, place.accelerator, guard, backend)
    group.push(world_size=world_size, device=place.device, guard=guard, backend=backend, **parameters)
    _register_magic()
    took = time.monotonic() - began
    print(f"{world_size} {'rank' if world_size == 1 else 'ranks'} on {place.device} after {took:.1f} s. "
          f"{place.reason}.")  # fmt: skip
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


def _bring_up(place, world_size: int, start_deadline: float, cell_deadline: float) -> RankGroup:
    import ipyparallel

    global _session
    if _session is not None and (not _session.alive or _session.placement != place):
        _session.close()
        _session = None
    if _session is None:
        _session = Session(place, start_deadline)
    port = environ.free_port()
    shared = place.device == "cuda-shared"
    variables = [environ.rank_environment(rank, world_size, port, shared) for rank in range(world_size)]
    pids = _session.fork(variables, start_deadline)
    client = ipyparallel.Client(
        connection_info=str(_session.connection_file), timeout=start_deadline, profile_dir=_session.folder
    )
    group = RankGroup(world_size, place, cell_deadline, _session, pids, client)
    try:
        _await_engines(group, start_deadline)
    except BaseException:
        group.stop("they did not start")
        raise
    return group


def _await_engines(group: RankGroup, deadline: float) -> None:
    until = time.monotonic() + deadline
    wanted = set(range(group.ranks))
    while not wanted <= set(group._client.ids):
        ended = [rank for rank, pid in enumerate(group._pids) if pid in group._session.exits]
        if ended or time.monotonic() > until:
            missing = ", ".join(str(rank) for rank in sorted(wanted - set(group._client.ids)))
            raise RanksError(
                "The ranks did not come up."
                if ended
                else f"The ranks did not come up within {deadline:g} s.",
                f"Rank {ended[0]} ended. {group._session.last_words()}"
                if ended
                else f"Missing: rank {missing}.",
                "Give start_deadline more seconds, or look at the machine's memory and load.",
            )
        time.sleep(0.02)


def _register_magic() -> None:
    from dskit.ranks.magic import register

    register()


def _prepare(accelerator: str, guard: str, backend: str) -> None:
    from dskit.ranks.prepare import prepare

    prepare(accelerator, guard, backend, quiet=True)


def _evaluate(expression: str):
    from IPython import get_ipython

    return eval(expression, get_ipython().user_ns)


def _main_thread(dump: str) -> str:
    """The main thread's frames of a faulthandler dump (it is put last), down to the cell that runs."""
    frames = dump[dump.rfind("Current thread") :].strip().splitlines()[1:]
    machinery = next((i for i, frame in enumerate(frames) if "IPython/core/" in frame), len(frames))
    return "\n".join(frames[:machinery]) or "(between cells)"


def _describe_errors(errors: dict[int, object], dead: dict[int, int], ranks: int) -> str:
    by_text: dict[str, list[int]] = {}
    for rank, error in errors.items():
        by_text.setdefault(_traceback_text(error), []).append(rank)
    parts = [f"{_ranks_label(who)} failed:\n{text}" for text, who in by_text.items()]
    for rank, status in dead.items():
        how = f"ended by signal {-status}" if status < 0 else f"exited with status {status}"
        parts.append(f"Rank {rank} was {how}.")
    return "\n".join(parts) or "A rank failed without a message."


def _traceback_text(error) -> str:
    import re

    text = getattr(error, "traceback", None) or f"{type(error).__name__}: {error}"
    return re.sub(r"\x1b\[[0-9;]*m", "", text)


def _ranks_label(who: list[int]) -> str:
    return f"Rank {who[0]}" if len(who) == 1 else "Ranks " + " and ".join(map(str, who))


__all__ = ["DskitError", "RankFailure", "RankGroup", "RanksError", "current", "start"]
