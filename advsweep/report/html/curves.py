"""Curves of the page: thinned, and packed so that those of hundreds of runs fit into it."""

from __future__ import annotations

import base64
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
from scipy.special import stdtrit

from advsweep.errors import NotFoundError, ReportError
from advsweep.report.data.columns import Column, metric_range
from advsweep.report.figures.chart import Options
from advsweep.report.figures.data import Material
from advsweep.report.figures.pass_at_k import PassAtK
from advsweep.report.figures.training import STANDARD

if TYPE_CHECKING:
    from jaxtyping import Float, Int

    from advsweep.report.figures.data import Series

MOST_POINTS = 200
"""A curve has so many points at most."""

LEAST_POINTS = 100
"""Rather than thin curves to fewer points the page leaves metrics out."""

BUDGET = 3_000_000
"""Characters that all curves together take at most."""

_PACKED = 4  # characters of a value
# Kept first where not all metrics fit.
_FAMILIES = ("estimator", "collapse", "mass", "entropy", "reward", "advantage", "pass@1", "loss")


def collect_curves(material: Material, *, budget: int = BUDGET) -> dict[str, Any]:
    """The runs' curves of every metric, or of the first that fit.

    Returns:
        `metrics`: of each its `name`, the `steps` of its points, over how many steps (`per`) a
        point is the mean, `within` which values it lies if it is a share, and `runs`: by id the
        packed values at these steps; `left_out`: names of metrics that did not fit; `t`: the
        97.5 % quantile of Student's t for n values, at place n, from which the page makes its
        bands.
    """
    left = sorted(material.metric_names, key=_rank)
    points = budget // (_PACKED * len(material.runs) * max(len(left), 1))
    points = min(max(points, LEAST_POINTS), MOST_POINTS)
    metrics: list[dict[str, Any]] = []
    taken = 0
    while left:
        metric = _collect_metric(material, left[0], points)
        taken += _PACKED * len(metric["steps"]) * len(metric["runs"])
        if taken > budget and metrics:
            break
        metrics += [metric] if metric["runs"] else []
        left = left[1:]
    most = max(len(row.runs) for row in material.rows)
    return {
        "metrics": metrics,
        "left_out": left,
        "t": [0, 0, *(_round(float(stdtrit(n - 1, 0.975))) for n in range(2, most + 1))],
    }


def _collect_metric(material: Material, name: str, points: int) -> dict[str, Any]:
    try:
        series = material.series(name)
    except (NotFoundError, ReportError):
        # Evaluations that were not made alike are no curve.
        return {"name": name, "steps": [], "per": 1, "runs": {}}
    steps, per, values = thin(series, points)
    runs = {str(run_id): pack(own) for run_id, own in values.items()}
    return {
        "name": name,
        "steps": steps.tolist(),
        "per": per,
        "within": metric_range(name),
        "runs": runs,
    }


def _rank(name: str) -> tuple[int, bool, int, str]:
    """Sorts metrics: what figures show by default, other families, then parts of metrics."""
    standard = STANDARD.index(name) if name in STANDARD else len(STANDARD)
    family = name.partition("/")[0]
    place = _FAMILIES.index(family) if family in _FAMILIES else len(_FAMILIES)
    return standard, name.count("/") > 1, place, name


def thin(
    series: Mapping[int, Series], points: int
) -> tuple[Float[np.ndarray, " points"], int, dict[int, Float[np.ndarray, " points"]]]:
    """Curves of at most so many points, each the mean over as many neighbouring steps.

    Returns:
        The steps that any curve has, averaged over each stretch; how many steps a stretch has;
        and by run the means over what is finite of each, NaN where nothing is.
    """
    steps = np.unique(np.concatenate([own for own, _ in series.values()]))
    per = -(-len(steps) // points)
    starts = np.arange(0, len(steps), per)
    grid = np.add.reduceat(steps, starts) / np.diff([*starts, len(steps)])
    thinned = {}
    for run_id, (own, values) in series.items():
        places = np.searchsorted(steps, own) // per
        known = np.isfinite(values)
        sums = np.bincount(places[known], values[known], len(grid))
        counts = np.bincount(places[known], minlength=len(grid))
        with np.errstate(invalid="ignore"):
            thinned[run_id] = sums / counts
    return grid, per, thinned


def pack(values: Float[np.ndarray, " points"]) -> str:
    """Values in base64, four characters each: float32 without its last byte, 16 bits of it."""
    bits: Int[np.ndarray, " points"] = values.astype("<f4").view("<u4")
    rounded = np.where(np.isnan(values), 0x7FC000, (bits.astype(np.uint64) + 0x80) >> 8)
    kept = rounded.astype("<u4").view(np.uint8).reshape(-1, 4)[:, :3]
    return base64.b64encode(kept.tobytes()).decode("ascii")


def collect_passk(material: Material) -> dict[str, Any]:
    """The lines of pass@k over k with their laws, or why there are none."""
    try:
        chart = PassAtK.collect(material, Options())
    except (NotFoundError, ReportError) as error:
        return {"refused": str(error)}
    return {
        "ks": chart.ks.tolist(),
        "notes": list(chart.notes),
        "lines": [
            {
                "label": line.label,
                "mean": _rounded(line.band.mean),
                "low": _rounded(line.band.low),
                "high": _rounded(line.band.high),
                "n": int(line.band.n.max()),
                "law": None
                if line.law is None
                else [_round(e.value) for e in (line.law.a, line.law.b, line.law.c)],
            }
            for line in chart.lines
        ],
    }


def collect_columns(material: Material, columns: Sequence[Column]) -> list[dict[str, Any]]:
    """The value of each run in each column of a table, after its training."""
    collected = []
    for column in columns:
        try:
            values = material.values(column.name)
        except (NotFoundError, ReportError):
            continue
        runs = {str(run_id): _round(value) for run_id, value in values.items()}
        collected.append({"name": column.name, "runs": runs})
    return collected


def collect_rows(material: Material) -> list[dict[str, Any]]:
    """What curves are means of: replicates with their label, look and runs; models beside them."""
    rows: list[dict[str, Any]] = [
        {
            "label": row.label,
            "colour": row.look.colour,
            "variant": row.look.variant,
            "runs": [run.id for run in row.runs],
        }
        for row in material.rows
    ]
    try:
        untrained = material.untrained
    except ReportError:
        untrained = []
    return rows + [
        # Theirs is black, which cannot be seen on a dark page.
        {"label": m.label, "colour": "var(--ink)", "variant": m.look.variant, "runs": []}
        for m in untrained
    ]


def _rounded(values: Float[np.ndarray, " points"]) -> list[float | None]:
    return [_round(value) for value in values.tolist()]


def _round(value: float) -> float | None:
    """Five digits, which is more than a screen shows."""
    return float(f"{value:.5g}") if np.isfinite(value) else None
