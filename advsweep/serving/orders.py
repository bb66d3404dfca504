"""Orders of the page's user: to stop runs, and to restart them."""

from __future__ import annotations

import json
from dataclasses import dataclass
from typing import Literal

from advsweep.errors import ConfigError, NotFoundError, first_of
from advsweep.serving.restarts import Starter
from advsweep.serving.state import actions_of
from advsweep.store import Status, Store
from advsweep.sweep.stop_runs import request_stops

Verb = Literal["stop", "retry"]

# The largest order, in bytes: that of 100,000 runs.
MOST_BYTES = 1_000_000
_LISTED = 5


@dataclass(frozen=True)
class Order:
    """Which runs are meant.

    Attributes:
        sweep: the sweep that the page shows; None for all runs of the store.
    """

    sweep: str | None
    runs: tuple[int, ...]


def parse_order(text: bytes) -> Order:
    """Read an order.

    Raises:
        ConfigError: it is none.
    """
    expected = 'expected {"sweep": NAME or null, "runs": [ID, ...]}'
    try:
        given = json.loads(text)
    except ValueError as error:
        raise ConfigError(f"{expected}, got no JSON") from error
    if not isinstance(given, dict) or given.keys() != {"sweep", "runs"}:
        raise ConfigError(f"{expected}, got something else")
    sweep, runs = given["sweep"], given["runs"]
    if not (sweep is None or isinstance(sweep, str)) or not isinstance(runs, list):
        raise ConfigError(f"{expected}, got something else")
    if not runs or not all(type(run) is int and run > 0 for run in runs):
        raise ConfigError(f"{expected}, got other ids")
    return Order(sweep, tuple(dict.fromkeys(runs)))


def carry_out(verb: Verb, order: Order, store: Store, restarts: Starter) -> str:
    """Stop or restart runs, as far as their status allows it; return what was done.

    Raises:
        NotFoundError: the sweep does not exist, or has not all of these runs.
    """
    known = {run.id: run for run in store.runs.progress(order.sweep)}
    unknown = [run for run in order.runs if run not in known]
    if unknown:
        where = store.name if order.sweep is None else f"sweep '{order.sweep}'"
        raise NotFoundError(f"no run {first_of(map(str, unknown), _LISTED)} in {where}")
    is_busy = any(run.status is Status.RUNNING for run in known.values())
    meant = [known[run] for run in order.runs]
    able = [run for run in meant if verb in actions_of(run, is_busy=is_busy)]
    if not able:
        reasons = [f"run {run.id} is {run.status.value}" for run in meant]
        return f"Nothing to {verb}: {first_of(reasons, _LISTED)}."
    if verb == "stop":
        return request_stops(store, able)
    return restarts.start([run.id for run in able])
