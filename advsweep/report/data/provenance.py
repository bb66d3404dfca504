"""Where the numbers of a report come from."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any

from advsweep.store import RunRecord, Store

NOT_MATCHED = "none"
_LEARNING_RATE = "optim/lr"


@dataclass(frozen=True)
class Provenance:
    """Where the numbers of a report come from; lists are sorted and without repeats.

    Attributes:
        store: the store's path as it was given, or its URL without a password.
        sweep: its name; None for other sets of runs.
        runs: how many runs are in the table.
        evaluations: for each task that numbers are of, its name, the number of problems, and
            how samples were drawn.
        learning_rates: for each way they were matched, `match` (`none` if they were not), the
            name of its `reference`, and the `rates` at the end of training by estimator.
        commits: of the code that made the runs; `dirty` if any of them had changes.
        versions: of what the runs were made with, by program.
        hardware: machines that the runs were made on.
        first, last: when the first run was started and the last one finished, in UTC.
    """

    store: str
    sweep: str | None
    runs: int
    evaluations: Sequence[Mapping[str, Any]]
    learning_rates: Sequence[Mapping[str, Any]]
    commits: Sequence[str]
    dirty: bool
    versions: Mapping[str, Sequence[str]]
    hardware: Sequence[str]
    first: datetime | None
    last: datetime | None


def describe_provenance(
    store: Store,
    sweep: str | None,
    runs: Sequence[RunRecord],
    evaluations: Sequence[Mapping[str, Any]],
) -> Provenance:
    """Puts together what the store knows of how some runs were made."""
    environments = store.runs.distinct_environments([run.id for run in runs])
    git = [state for e in environments if (state := e.get("git"))]
    versions: dict[str, set[str]] = {}
    for environment in environments:
        own = {key: environment.get(key) for key in ("advsweep", "python")}
        for name, version in {**own, **environment.get("packages", {})}.items():
            if version:
                versions.setdefault(name, set()).add(version)
    return Provenance(
        store=store.name,
        sweep=sweep,
        runs=len(runs),
        evaluations=list(evaluations),
        learning_rates=_learning_rates(store, runs),
        commits=sorted({state["commit"] for state in git}),
        dirty=any(state["dirty"] for state in git),
        versions={name: sorted(found) for name, found in sorted(versions.items())},
        hardware=sorted({_machine(e) for e in environments} - {""}),
        first=min((run.started for run in runs if run.started), default=None),
        last=max((run.finished for run in runs if run.finished), default=None),
    )


def _learning_rates(store: Store, runs: Sequence[RunRecord]) -> list[dict[str, Any]]:
    last = store.metrics.last_values([run.id for run in runs], [_LEARNING_RATE])
    found: dict[tuple[str, str | None], dict[str, set[float]]] = {}
    for run in runs:
        optimizer = run.config.get("optimizer", {})
        match, reference = optimizer.get("match", NOT_MATCHED), None
        if match != NOT_MATCHED:
            reference = optimizer["match_reference"]["name"]
        rates = found.setdefault((match, reference), {}).setdefault(run.estimator, set())
        rates |= set(last.get(run.id, {}).values())
    return [
        {
            "match": match,
            "reference": reference,
            "rates": {estimator: sorted(rates) for estimator, rates in by_estimator.items()},
        }
        for (match, reference), by_estimator in found.items()
    ]


def _machine(environment: Mapping[str, Any]) -> str:
    memory = environment.get("memory_bytes")
    parts = [
        environment.get("cpu"),
        f"{environment['cores']} cores" if environment.get("cores") else None,
        f"{memory / 2**30:.0f} GiB" if memory else None,
    ]
    return ", ".join(part for part in parts if part)
