"""What a shell offers after TAB; typer's `--install-completion` sets it up."""

from __future__ import annotations

import re
from collections.abc import Iterable
from typing import TYPE_CHECKING

import typer

from advsweep.errors import AdvsweepError
from advsweep.printable import printable_line

if TYPE_CHECKING:
    from advsweep.store import Store

OFFERED = 50
"""Runs to choose from; of more than these a user types the id."""

_PLAIN_WORD = re.compile(r"[\w.@%+,/][\w.@%+,:/=-]*")


def complete_estimator(incomplete: str) -> list[str]:
    """Estimators by their names."""
    from advsweep.estimators import estimator_names

    return _starting(estimator_names(), incomplete)


def complete_tracker(incomplete: str) -> list[str]:
    """Trackers by their names."""
    from advsweep.sweep.registry import TRACKINGS

    return _starting([name for name in TRACKINGS if name != "none"], incomplete)


def complete_claims(incomplete: str) -> list[str]:
    """Our own lists of claims by their names."""
    from advsweep.report.claims.lists import claim_lists

    return _starting(claim_lists(), incomplete)


def complete_override(context: typer.Context, incomplete: str) -> list[str]:
    """What an override's group can be: of `+experiment=tw`, the experiments that begin so.

    Of several (`estimator=grpo,fa`) the last is completed. Keys that are no groups are left alone.
    """
    from advsweep.sweep.registry import config_groups

    words = [word for word in context.params.get("overrides") or [] if word != "="]
    key, equals, value = incomplete.partition("=")
    if not equals:  # bash takes the sign for a word's end, and wants what follows it alone
        key, value = words[-1] if words else "", incomplete
    chosen, comma, begun = value.rpartition(",")
    head = f"{key}=" if equals else ""
    try:
        with config_groups(context.params.get("config_dir") or ()) as groups:
            group = key.lstrip("+")
            members = groups.members(group) if group in groups.names else []
    except AdvsweepError:
        return []  # as for a store
    return [f"{head}{chosen}{comma}{name}" for name in _starting(members, begun)]


def complete_figure(incomplete: str) -> list[str]:
    """Figures by their names, the last of several after a comma."""
    from advsweep.report.figures.registry import FIGURES

    before, comma, last = incomplete.rpartition(",")
    return [f"{before}{comma}{name}" for name in _starting(FIGURES, last)]


def complete_sweep(context: typer.Context, incomplete: str) -> list[str]:
    """The store's sweeps."""
    return _starting(_sweeps(_store(context)), incomplete)


def complete_run(context: typer.Context, incomplete: str) -> list[tuple[str, str]]:
    """The store's newest runs by their ids, with what they are."""
    return [run for run in _runs(_store(context)) if run[0].startswith(incomplete)]


def complete_target(context: typer.Context, incomplete: str) -> list[tuple[str, str]]:
    """Sweeps and runs."""
    store = _store(context)
    sweeps = [(name, "sweep") for name in _starting(_sweeps(store), incomplete)]
    return sweeps + [run for run in _runs(store) if run[0].startswith(incomplete)]


def _starting(names: Iterable[str], incomplete: str) -> list[str]:
    return [name for name in names if name.startswith(incomplete)]


def _store(context: typer.Context) -> Store | None:
    """The store that the command line names; None where there is none to be had."""
    from advsweep.store import open_store

    try:
        return open_store(context.params.get("store"), create=False)
    except AdvsweepError:
        return None  # a shell that completes has no place for an error


def _sweeps(store: Store | None) -> list[str]:
    """Names that a shell reads as one plain word: what is completed is run by it."""
    names = [] if store is None else [sweep.name for sweep in store.sweeps.select()]
    return [name for name in names if _PLAIN_WORD.fullmatch(name)]


def _runs(store: Store | None) -> list[tuple[str, str]]:
    runs = [] if store is None else store.runs.select(limit=OFFERED)
    return [
        (str(r.id), printable_line(f"{r.estimator} seed={r.seed} {r.status.value}")) for r in runs
    ]
