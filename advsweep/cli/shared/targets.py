"""Which runs a command is about: runs one by one, or a sweep's."""

from __future__ import annotations

from collections.abc import Sequence, Set
from dataclasses import dataclass
from typing import TYPE_CHECKING

from advsweep.errors import NotFoundError

if TYPE_CHECKING:
    from advsweep.store import RunRecord, Store


@dataclass(frozen=True)
class Targets:
    """What was named.

    Attributes:
        runs: each once, in the order given; a sweep's in the order of its plan.
        named: the ids of those that were named one by one.
        sweeps: the sweeps that were named.
    """

    runs: Sequence[RunRecord]
    named: Set[int]
    sweeps: Sequence[str]


def split_overrides(arguments: Sequence[str]) -> tuple[list[str], list[str]]:
    """What names runs or sweeps, and what changes settings: KEY=VALUE."""
    names = [argument for argument in arguments if "=" not in argument]
    return names, [argument for argument in arguments if "=" in argument]


def find_targets(store: Store, keys: Sequence[str]) -> Targets:
    """The runs that are meant by sweeps' names, ids, starts of identities, and `last`.

    Raises:
        NotFoundError: a key means nothing, or both a sweep and a run.
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
        f"'{name}' is a sweep and means run {run.id} too; name the run by {run.identity[:10]}, or "
        "the sweep's runs by their ids"
    )
