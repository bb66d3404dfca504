"""How the runs of a sweep stand, as the page shows it every two seconds."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from advsweep.components import Plain
from advsweep.errors import rough_duration
from advsweep.printable import printable_line
from advsweep.store import RunProgress, Status, Store
from advsweep.sweep.status import SweepStatus, describe_failure, read_status

_FAILURES = 10

_RESTARTED = (Status.FAILED, Status.INTERRUPTED, Status.LOST)


def actions_of(run: RunProgress, *, is_busy: bool) -> Mapping[str, str]:
    """Return what can be done with a run, `stop` or `retry`, with the text of its button.

    Args:
        is_busy: whether other runs of the sweep are training, so that a pending one has its turn.
    """
    if run.status in _RESTARTED:
        return {"retry": "retry"}
    if run.status is Status.PENDING and (run.stop_requested or not is_busy):
        return {"retry": "start"}
    if run.status in (Status.PENDING, Status.RUNNING) and not run.stop_requested:
        return {"stop": "stop"}
    return {}


@dataclass(frozen=True)
class State:
    """How runs stand.

    Attributes:
        mark: what the store was like before they were read.
        is_busy: whether a run is training, whose status may change without a write.
        record: for the page.
    """

    mark: str
    is_busy: bool
    record: Plain


class States:
    """The last state of each sweep that is looked at; it is read again when it may have changed."""

    def __init__(self, store: Store) -> None:
        self._store = store
        self._last: dict[str | None, State] = {}

    def read(self, sweep: str | None) -> State:
        """Return how the runs of a sweep, or of the store, stand.

        Raises:
            NotFoundError: there is no such sweep.
        """
        mark = self._store.changes.mark()
        last = self._last.get(sweep)
        if last is not None and last.mark == mark and not last.is_busy:
            return last
        record = read_state(self._store, sweep)
        self._last[sweep] = State(mark, record["running"] > 0, record)
        return self._last[sweep]


def read_state(store: Store, sweep: str | None) -> Plain:
    """Read how the runs of a sweep, or of the store, stand.

    Raises:
        NotFoundError: there is no such sweep.
    """
    standing = read_status(store, sweep, failures=_FAILURES)
    is_busy = standing.states[Status.RUNNING] > 0
    left = {run["id"]: run["seconds_left"] for run in standing.running}
    return {
        "text": _describe(standing),
        "runs": standing.runs,
        "done": standing.states[Status.DONE],
        "running": standing.states[Status.RUNNING],
        "share": standing.trained / standing.steps if standing.steps else 0,
        "rows": {
            str(run.id): {
                "status": _show_status(run, left.get(run.id)),
                "step": run.step,
                "steps": run.steps,
                "actions": actions_of(run, is_busy=is_busy),
            }
            for run in store.runs.progress(sweep)
        },
        "notes": [printable_line(describe_failure(run)) for run in standing.failures],
    }


def _describe(standing: SweepStatus) -> str:
    """Return the runs by status, their steps and the time left."""
    parts = [standing.counts]
    if standing.steps:
        parts.append(f"{standing.trained} of {standing.steps} steps")
    if standing.seconds_left:
        parts.append(f"about {rough_duration(standing.seconds_left)} left")
    return "; ".join(parts)


def _show_status(run: RunProgress, seconds_left: float | None) -> str:
    """Return the status of a run with what it does now and how long that takes."""
    parts = [run.status.value]
    if run.status is Status.RUNNING:
        if run.stage and run.stage != "training":
            parts.append(printable_line(run.stage))
        if seconds_left and not run.stop_requested:
            parts.append(f"{rough_duration(seconds_left)} left")
        if run.stop_requested:
            parts.append("stopping")
    if run.status is Status.PENDING and run.stop_requested:
        parts.append("stopped")
    return ", ".join(parts)
