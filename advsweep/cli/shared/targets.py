"""Find the runs that a command's arguments name."""

from __future__ import annotations

from collections.abc import Sequence, Set
from dataclasses import dataclass
from typing import TYPE_CHECKING

from advsweep.errors import NotFoundError

if TYPE_CHECKING:
    from advsweep.store import RunRecord, Store


@dataclass(frozen=True)
class Targets:
    """Runs and sweeps that the arguments name.

    Attributes:
        runs: each run once, in the order given; a sweep's runs in plan order.
        named: ids of the runs that were named individually.
        sweeps: names of the sweeps that were named.
    """

    runs: Sequence[RunRecord]
    named: Set[int]
    sweeps: Sequence[str]


def split_overrides(arguments: Sequence[str]) -> tuple[list[str], list[str]]:
    """Splits arguments into names of runs or sweeps and KEY=VALUE overrides."""
    names = [argument for argument in arguments if "=" not in argument]
    return names, [argument for argument in arguments if "=" in argument]


def find_targets(store: Store, keys: Sequence[str]) -> Targets:
    """Finds runs by sweep name, id, start of an identity, or `last`.

    Raises:
        NotFoundError: a key matches nothing, or both a sweep and a run.
    """
    names = {sweep.name for sweep in store.sweeps.select()}
    runs: dict[int, RunRecord] = {}
    named = set()
    sweeps = []
    for key in keys:
        if key in names:
            _refuse_ambiguous(store, key)
            sweeps.append(key)
            found = store.runs.select(sweep=key, newest_first=False)
        else:
            found = [store.runs.find(key)]
            named.add(found[0].id)
        runs.update((run.id, run) for run in found)
    return Targets(list(runs.values()), named, sweeps)


def _refuse_ambiguous(store: Store, name: str) -> None:
    try:
        run = store.runs.find(name)
    except NotFoundError:
        return
    raise NotFoundError(
        f"'{name}' matches both a sweep and run {run.id}; name the run as {run.identity[:10]}, "
        "or name the sweep's runs by their ids"
    )
