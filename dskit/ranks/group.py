"""A group of ranks behind a notebook: run code on it, exchange values with it, stop it."""

import contextlib
import time
from dataclasses import dataclass, field

from dskit.ranks.engine import stack_file
from dskit.ranks.failures import Failures, RankFailure
from dskit.ranks.output import OutputPrinter
from dskit.ranks.placement import Placement
from dskit.ranks.session import RanksError, Session

# After a rank failed, the others have this long to end by themselves (they often fail alike), in seconds.
_GRACE_SECONDS = 2.0

# A value is pulled or pushed within this time, in seconds; ranks answer between cells.
_EXCHANGE_SECONDS = 60.0


@dataclass
class RankGroup:
    """Rank processes that a notebook's ``%%px`` cells run on.

    Attributes:
        ranks: the world size.
        placement: where they run, and why.
        cell_deadline: seconds that a cell may take unless it says otherwise.
    """

    ranks: int
    placement: Placement
    cell_deadline: float
    _session: Session = field(repr=False)
    _pids: list[int] = field(repr=False)
    _client: object = field(repr=False)
    _engines: list[int] = field(repr=False)
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
        results = self._view().execute(code, silent=False, block=False)
        self._follow(results, OutputPrinter(self.ranks), deadline or self.cell_deadline)
        failures = self._failures(results)
        if raises:
            self._check_raised(results, failures, raises)
        elif failures:
            self._fail(failures)

    def push(self, **values) -> None:
        """Set variables on every rank (papermill gives parameters to the kernel alone)."""
        self._check_running()
        self._exchange(self._view().push(values, block=False))

    def pull(self, expression: str, rank: int | None = None):
        """Value of an expression: a list over the ranks in order, or one rank's."""
        values = self.apply(_evaluate, expression)
        return values if rank is None else values[rank]

    def apply(self, function, *args, rank: int | None = None):
        """Call a function on every rank, or on one; returns the list of results, or the one result.

        Raises:
            RankFailure: a rank raised or ended.
        """
        self._check_running()
        results = self._view(rank).apply_async(function, *args)
        values = self._exchange(results)
        return values if rank is None else values[0]

    def stop(self, because: str = "they were stopped by stop()") -> None:
        """End the ranks. Safe to call twice."""
        if not self._stopped_because:
            self._stopped_because = because
            with contextlib.suppress(Exception):
                self._client.close(linger=0)
            if self._session.alive:
                self._session.kill(self._pids)

    # ---- following what runs --------------------------------------------------------------------------

    def _follow(self, results, printer: OutputPrinter, deadline: float) -> None:
        """Print output until every rank is done, one has failed and the grace is over, or time is up."""
        until = time.monotonic() + deadline
        give_up = None
        try:
            while not results.ready():
                results.wait(0.05)
                printer.update(*self._output(results, "stdout", "stderr"))
                now = time.monotonic()
                if give_up is None and self._failures(results):
                    give_up = now + _GRACE_SECONDS
                if give_up is not None and now > give_up:
                    break
                if now > until:
                    self._overrun(deadline)
            results.wait_for_output(1.0)
        except KeyboardInterrupt:
            self.stop("a cell was interrupted")
            raise
        finally:
            printer.update(*self._output(results, "stdout", "stderr"))
            printer.finish(*self._output(results, "outputs"))

    def _exchange(self, results) -> list:
        until = time.monotonic() + _EXCHANGE_SECONDS
        while not results.ready():
            results.wait(0.05)
            if self._failures(results):
                break
            if time.monotonic() > until:
                self._overrun(_EXCHANGE_SECONDS)
        failures = self._failures(results)
        if failures:
            self._fail(failures)
        return list(results.get(0, return_exceptions=False))

    def _output(self, results, *keys: str) -> list[list]:
        """For each key, what every rank sent so far; unlike the result's own attributes this never waits."""
        return [[told[key] for told in results.metadata] for key in keys]

    def _failures(self, results) -> Failures:
        raised = [
            (told["completed"] or told["received"], rank, told["error"])
            for rank, told in enumerate(results.metadata)
            if told["error"]
        ]
        raised += [(None, rank, error) for rank, error in self._unpublished(results, raised)]
        raised.sort(key=lambda item: (item[0] is None, str(item[0])))
        lost = {rank: how for rank, pid in enumerate(self._pids) if (how := self._session.fate(pid))}
        return Failures({rank: _traceback_text(error) for _, rank, error in raised}, lost)

    def _unpublished(self, results, published: list) -> list[tuple[int, Exception]]:
        """Errors that came as a call's reply alone (a cell's error is published as output, too)."""
        if not results.ready() or results.successful() or published:
            return []
        outcomes = results.get(0, return_exceptions=True)
        return [(rank, o) for rank, o in enumerate(outcomes) if isinstance(o, Exception)]

    def _fail(self, failures: Failures) -> None:
        self.stop(f"they were stopped after rank {failures.first_rank} failed")
        raise RankFailure(failures.describe()) from None

    def _check_raised(self, results, failures: Failures, expected: str) -> None:
        self.stop(f"they were stopped after the {expected} that the cell shows")
        names = {rank: told["error"].ename for rank, told in enumerate(results.metadata) if told["error"]}
        if not failures.lost and len(names) == self.ranks and set(names.values()) == {expected}:
            print(failures.describe())
            return
        found = ", ".join(
            f"rank {r}: {failures.lost.get(r) or names.get(r, 'no error')}" for r in range(self.ranks)
        )
        told = f"\n{failures.describe()}" if failures else ""
        raise RankFailure(f"Every rank was to raise {expected}.\nFound {found}.{told}")

    def _overrun(self, deadline: float) -> None:
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
                texts.append(f"--- rank {rank} ---\n{_frames_of_cell(text)}")
        return "\n".join(texts)

    def _view(self, rank: int | None = None):
        return self._client.direct_view(self._engines if rank is None else [self._engines[rank]])

    def _check_running(self) -> None:
        if self._stopped_because:
            raise RanksError(
                "There are no ranks to run this on.",
                f"Found: {self._stopped_because}.",
                "Start fresh ones with ranks.start(), and run the cells that made the engine again.",
            )


def _evaluate(expression: str):
    from IPython import get_ipython

    return eval(expression, get_ipython().user_ns)


def _frames_of_cell(dump: str) -> str:
    """The main thread's frames of a faulthandler dump (it is put last), down to the cell that runs."""
    frames = dump[dump.rfind("Current thread") :].strip().splitlines()[1:]
    machinery = next((i for i, frame in enumerate(frames) if "IPython/core/" in frame), len(frames))
    return "\n".join(frames[:machinery]) or "(between cells)"


def _traceback_text(error) -> str:
    return getattr(error, "traceback", None) or f"{type(error).__name__}: {error}"
