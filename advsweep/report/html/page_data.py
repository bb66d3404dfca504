"""Curves and runs of the page: thinned and packed curves, and what each run opens to."""

from __future__ import annotations

import base64
import json
import math
import re
from collections.abc import Iterable, Mapping, Sequence
from datetime import datetime
from typing import TYPE_CHECKING, Any

import numpy as np
from scipy.special import stdtrit

from advsweep.components import named_leaves
from advsweep.errors import NotFoundError, ReportError
from advsweep.report.data.columns import metric_range
from advsweep.report.data.grouping import group_runs
from advsweep.report.figures.data import FigureData
from advsweep.report.figures.style import label_of
from advsweep.report.figures.training import STANDARD
from advsweep.report.tables.layout import show
from advsweep.store import EvaluationRecord, RunRecord, Store
from advsweep.writing import Entry, Heading, Line, Table

if TYPE_CHECKING:
    from jaxtyping import Float, Int


MOST_POINTS = 200
"""Largest number of points of a curve."""

LEAST_POINTS = 100
"""The page leaves metrics out before it thins curves to fewer points than this."""

BUDGET = 3_000_000
"""Largest number of characters that all curves take together."""

_PACKED = 4  # characters of a value
# Kept first where not all metrics fit.
_FAMILIES = ("estimator", "collapse", "mass", "entropy", "reward", "advantage", "pass@1", "loss")
_RUN_METRICS = ("reward/mean", "collapse/acr", "entropy/token")


def collect_curves(data: FigureData, *, budget: int = BUDGET) -> dict[str, Any]:
    """Returns the runs' curves of every metric, or of the first metrics that fit.

    Returns:
        `metrics`: for each metric its `name`, the `steps` of its points, how many steps a point
        averages (`per`), the bounds of its values if it is a share (`within`), and `runs`: the
        packed values at these steps by run id; `left_out`: names of metrics that do not fit;
        `t`: the 97.5 % quantile of Student's t for n values at index n, from which the page
        computes its bands.
    """
    names = sorted(data.metric_names, key=_rank)
    points = budget // (_PACKED * len(data.runs) * max(len(names), 1))
    points = min(max(points, LEAST_POINTS), MOST_POINTS)
    metrics: list[dict[str, Any]] = []
    left_out: list[str] = []
    size = 0
    for place, name in enumerate(names):
        try:
            steps, per, values = data.thinned(name, points)
        except (NotFoundError, ReportError):
            # Evaluations with different settings make no curve.
            continue
        size += _PACKED * len(steps) * len(values)
        if size > budget and metrics:
            left_out = names[place:]
            break
        metrics.append(
            {
                "name": name,
                "steps": steps.tolist(),
                "per": per,
                "within": metric_range(name),
                "runs": {str(run_id): pack(own) for run_id, own in values.items()},
            }
        )
    most = max(len(row.runs) for row in data.rows)
    return {
        "metrics": metrics,
        "left_out": left_out,
        "t": [0, 0, *(round_off(float(stdtrit(n - 1, 0.975))) for n in range(2, most + 1))],
    }


def _rank(name: str) -> tuple[int, bool, int, str]:
    """Sorts metrics: defaults of the figures first, then by family, parts of metrics last."""
    standard = STANDARD.index(name) if name in STANDARD else len(STANDARD)
    family = name.partition("/")[0]
    place = _FAMILIES.index(family) if family in _FAMILIES else len(_FAMILIES)
    return standard, name.count("/") > 1, place, name


def pack(values: Float[np.ndarray, " points"]) -> str:
    """Encodes values in base64, four characters each.

    The last byte of each float32 is dropped, which leaves 16 bits of precision.
    """
    bits: Int[np.ndarray, " points"] = values.astype("<f4").view("<u4")
    # Rounding up the payload of a NaN could overflow into another value.
    rounded = np.where(np.isnan(values), 0x7FC000, (bits.astype(np.uint64) + 0x80) >> 8)
    kept = rounded.astype("<u4").view(np.uint8).reshape(-1, 4)[:, :3]
    return base64.b64encode(kept.tobytes()).decode("ascii")


LastValues = Mapping[int, Mapping[str, float]]
"""The last value of each metric, by run id and metric."""


def read_last_values(store: Store, runs: Sequence[RunRecord]) -> LastValues:
    """Reads the last value of every metric of some runs."""
    names: set[str] = set()
    # Replicates record the same metrics, so one run of each group has all names.
    for _, members in group_runs(runs):
        names |= set(store.metrics.names(members[0].id))
    return store.metrics.last_values([run.id for run in runs], sorted(names))


def lay_out_runs(runs: Sequence[RunRecord], last: LastValues) -> Table:
    """Lays out a line for each run: its state, its time and the last values of main metrics."""
    known = {name for values in last.values() for name in values}
    ks = sorted(int(match[1]) for name in known if (match := re.fullmatch(r"pass@(\d+)", name)))
    # The smallest k and the largest.
    names = [f"pass@{k}" for k in sorted({*ks[:1], *ks[-1:]})]
    names += [name for name in _RUN_METRICS if name in known]
    labels = {run.id: label_of(group) for group, members in group_runs(runs) for run in members}
    lines = [
        Line(
            names=(str(run.id), labels[run.id], str(run.seed), run.status.value),
            entries=(
                Entry(f"{run.step}/{run.steps}", value=run.step),
                _entry(_seconds(run), ".0f"),
                *(_entry(last.get(run.id, {}).get(name)) for name in names),
            ),
        )
        for run in runs
    ]
    return Table(
        names=("run", "row", "seed", "status"),
        columns=tuple(Heading((heading,)) for heading in ("steps", "seconds", *names)),
        sections=(tuple(lines),),
    )


def _entry(value: float | None, form: str = "") -> Entry:
    if value is None or math.isnan(value):
        return Entry()
    return Entry(format(value, form) if form else show(value), value=value)


def _seconds(run: RunRecord) -> float | None:
    if run.started is None or run.finished is None:
        return None
    return (run.finished - run.started).total_seconds()


def collect_runs(store: Store, runs: Sequence[RunRecord], last: LastValues) -> dict[str, Any]:
    """Returns config, provenance and numbers of each run; what runs share is written once.

    Returns:
        `pairs`: every key with a value that some run has; `metrics`: their names; `runs`: by run
        id the identity, with `config` and `environment` as indices into the pairs and `last` as
        values of the metrics.
    """
    ids = [run.id for run in runs]
    environments = store.runs.environments(ids)
    metrics = sorted({name for values in last.values() for name in values})
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
            "config": pooled(_flatten(run.config)),
            "environment": pooled(_flatten(_published(environments.get(run.id, {})))),
            "last": [round_off(last.get(run.id, {}).get(name)) for name in metrics],
            "evaluations": [
                [
                    e.step,
                    pooled([("task", e.task), *_flatten(e.settings)]),
                    {name: round_off(value) for name, value in e.scores().items()},
                ]
                for e in evaluations.get(run.id, ())
            ],
        }
        for run in runs
    }
    return {"pairs": [list(pair) for pair in places], "metrics": metrics, "runs": described}


def _published(environment: Mapping[str, Any]) -> dict[str, Any]:
    """The environment without the command line: pages are passed on, and it names files."""
    return {key: value for key, value in environment.items() if key != "command"}


def _identity(run: RunRecord) -> dict[str, str]:
    found = {
        "identity": run.identity,
        "attempt": str(run.attempt),
        "config hash": run.config_hash,
        "sweeps": ", ".join(run.sweeps),
        "status": run.status.value + (f" ({run.failure.value})" if run.failure else ""),
        "error": run.error or "",
        "started": _format_time(run.started),
        "finished": _format_time(run.finished),
        "host": run.host or "",
    }
    return {key: text for key, text in found.items() if text}


def _format_time(value: datetime | None) -> str:
    return value.strftime("%Y-%m-%d %H:%M:%S UTC") if value else ""


def _flatten(config: Mapping[str, Any]) -> list[tuple[str, str]]:
    found = named_leaves(config)
    return [(key, value if isinstance(value, str) else json.dumps(value)) for key, value in found]


def round_off(value: float | None) -> float | None:
    """Rounds to five digits, more than a screen shows; None where there is no finite value."""
    if value is None or not math.isfinite(value):
        return None
    return float(f"{value:.5g}")
