"""Runs of the page: a table of all, and everything that each opens to."""

from __future__ import annotations

import json
import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from datetime import datetime
from typing import Any

from advsweep.report.data.grouping import group_runs
from advsweep.report.figures.style import label_of
from advsweep.report.tables.document import Entry, Heading, Line, Table
from advsweep.report.tables.formatting import show
from advsweep.store import EvaluationRecord, RunRecord, Store

_SHOWN = ("reward/mean", "collapse/acr", "entropy/token")
_PASS = "pass@"


def lay_out_runs(store: Store, runs: Sequence[RunRecord]) -> Table:
    """A line for each run with its state, its time and the last values of main metrics."""
    values = _last_values(store, runs)
    known = {name for own in values.values() for name in own}
    ks = sorted((name for name in known if _is_pass(name)), key=_k)
    names = [*ks[:1], *ks[1:][-1:], *(name for name in _SHOWN if name in known)]
    labels = {run.id: label_of(group) for group, members in group_runs(runs) for run in members}
    lines = [
        Line(
            names=(str(run.id), labels[run.id], str(run.seed), run.status.value),
            entries=(
                Entry(f"{run.step}/{run.steps}", value=run.step),
                _entry(_seconds(run), ".0f"),
                *(_entry(values.get(run.id, {}).get(name)) for name in names),
            ),
        )
        for run in runs
    ]
    headings = ("steps", "seconds", *names)
    return Table(
        names=("run", "row", "seed", "status"),
        columns=tuple(Heading((heading,)) for heading in headings),
        sections=(tuple(lines),),
    )


def _entry(value: float | None, form: str = "") -> Entry:
    if value is None or math.isnan(value):
        return Entry()
    return Entry(format(value, form) if form else show(value), value=value)


def _is_pass(name: str) -> bool:
    return name.startswith(_PASS) and name.removeprefix(_PASS).isdigit()


def _k(name: str) -> int:
    return int(name.removeprefix(_PASS))


def _seconds(run: RunRecord) -> float | None:
    if run.started is None or run.finished is None:
        return None
    return (run.finished - run.started).total_seconds()


def _last_values(store: Store, runs: Sequence[RunRecord]) -> dict[int, dict[str, float]]:
    # Replicates record the same metrics.
    names: set[str] = set()
    for _, members in group_runs(runs):
        names |= set(store.metrics.names(members[0].id))
    return store.metrics.last_values([run.id for run in runs], sorted(names))


def collect_runs(store: Store, runs: Sequence[RunRecord]) -> dict[str, Any]:
    """Config, provenance and numbers of each run, what runs share written once.

    Returns:
        `pairs`: every key with a value that some run has; `metrics`: their names; `runs`: by id
        what `show` says, with `config` and `environment` as places among the pairs and `last`
        as values of the metrics.
    """
    ids = [run.id for run in runs]
    environments = store.runs.environments(ids)
    last = _last_values(store, runs)
    metrics = sorted({name for own in last.values() for name in own})
    evaluations: dict[int, list[EvaluationRecord]] = {}
    for evaluation in store.evaluations.select(ids, ends_only=True):
        assert evaluation.run_id is not None
        evaluations.setdefault(evaluation.run_id, []).append(evaluation)
    places: dict[tuple[str, str], int] = {}

    def pooled(pairs: Iterable[tuple[str, str]]) -> list[int]:
        return [places.setdefault(pair, len(places)) for pair in pairs]

    described = {
        str(run.id): {
            "is": _identity(run),
            "config": pooled(_flat(run.config)),
            "environment": pooled(_flat(_published(environments.get(run.id, {})))),
            "last": [_round(last.get(run.id, {}).get(name)) for name in metrics],
            "evaluations": [
                [e.step, pooled([("task", e.task), *_flat(e.settings)]), _scores(e)]
                for e in evaluations.get(run.id, ())
            ],
        }
        for run in runs
    }
    return {"pairs": [list(pair) for pair in places], "metrics": metrics, "runs": described}


def _published(environment: Mapping[str, Any]) -> dict[str, Any]:
    """An environment without its command line: pages are passed on, and it names files."""
    return {key: value for key, value in environment.items() if key != "command"}


def _identity(run: RunRecord) -> dict[str, str]:
    found = {
        "identity": run.identity,
        "attempt": str(run.attempt),
        "config hash": run.config_hash,
        "sweeps": ", ".join(run.sweeps),
        "status": run.status.value + (f" ({run.failure.value})" if run.failure else ""),
        "error": run.error or "",
        "started": _time(run.started),
        "finished": _time(run.finished),
        "host": run.host or "",
    }
    return {key: text for key, text in found.items() if text}


def _time(value: datetime | None) -> str:
    return value.strftime("%Y-%m-%d %H:%M:%S UTC") if value else ""


def _scores(evaluation: EvaluationRecord) -> dict[str, float | None]:
    return {name: _round(value) for name, value in evaluation.scores().items()}


def _flat(node: Mapping[str, Any], prefix: str = "") -> Iterator[tuple[str, str]]:
    """A nested mapping as dotted keys and texts; a node's name stands for the node."""
    for key, value in node.items():
        if isinstance(value, Mapping):
            if "name" in value:
                yield f"{prefix}{key}", str(value["name"])
            rest = {inner: item for inner, item in value.items() if inner != "name"}
            yield from _flat(rest, f"{prefix}{key}.")
        else:
            yield f"{prefix}{key}", value if isinstance(value, str) else json.dumps(value)


def _round(value: float | None) -> float | None:
    if value is None or not math.isfinite(value):
        return None
    return float(f"{value:.5g}")
