"""Columns of the stored analyses of weights and hidden states.

    weights/norm, share, s1_over_s2, r1, srank           of all matrices
    weights/r1/head, embedding, layers, layer_3, other   of a part of the model
    hidden/rho/correct, failed                           and hidden/residual/correct, failed
    hidden/along, residual_ratio, clt_baseline           of all rollouts

`advsweep weights` and `advsweep hidden-states` make the analyses. A column has the number of each
run's last analysed step; windows are over its analysed steps.
"""

from __future__ import annotations

import math
import re
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

if TYPE_CHECKING:
    from advsweep.report.data.windows import Curve
    from advsweep.store import Store

_WEIGHTS = re.compile(
    r"weights/(?P<field>norm|share|s1_over_s2|r1|srank)"
    r"(?:/(?P<part>head|embedding|layers|layer_\d{1,4}|other))?"
)
_HIDDEN = re.compile(
    r"hidden/(?:(?P<field>rho|residual)/(?P<group>correct|failed)"
    r"|(?P<whole>along|residual_ratio|clt_baseline))"
)


def is_analysed(name: str) -> bool:
    """Tells whether a metric is a number of an analysis, not of the training's steps."""
    return bool(_WEIGHTS.fullmatch(name) or _HIDDEN.fullmatch(name))


def analysis_curves(store: Store, run_ids: Sequence[int], name: str) -> dict[int, Curve]:
    """Returns a number of each run's analyses by step; of several at a step, that of the newest."""
    kind = "weights" if name.startswith("weights/") else "hidden_states"
    points: dict[int, dict[int, float]] = {}
    read = _of_weights if kind == "weights" else _of_states
    for record in store.analyses.select(run_ids, kind):
        points.setdefault(record.run_id, {})[record.step] = read(record.result, name)
    return {
        run_id: (np.array(sorted(own)), np.array([own[step] for step in sorted(own)]))
        for run_id, own in points.items()
    }


def _of_weights(result: Mapping[str, Any], name: str) -> float:
    """Returns a number of the joint change of some matrices, as `PartChange` defines it."""
    match = _WEIGHTS.fullmatch(name)
    assert match is not None
    part = (match["part"] or "all").replace("_", " ")
    matrices = [
        matrix
        for matrix in result["matrices"]
        if part in ("all", matrix["part"])
        or (part == "layers" and matrix["part"].startswith("layer "))
    ]
    squares = math.fsum(matrix["norm"] ** 2 for matrix in matrices)
    changed = [matrix for matrix in matrices if matrix["norm"]]
    if not matrices:
        return math.nan
    match match["field"]:
        case "norm":
            return math.sqrt(squares)
        case "share":
            return math.fsum(_number(matrix["share"]) for matrix in matrices)
        case "r1":
            return math.fsum(m["s1"] ** 2 for m in matrices) / squares if squares else math.nan
        case "s1_over_s2":
            # JSON has no infinity: null stands for a second singular value of 0.
            found = [matrix["s1_over_s2"] for matrix in changed]
            ratios = [math.inf if ratio is None else ratio for ratio in found]
            return math.fsum(ratios) / len(ratios) if ratios else math.nan
        case _:
            return math.fsum(m["srank"] for m in changed) / len(changed) if changed else math.nan


def _of_states(result: Mapping[str, Any], name: str) -> float:
    match = _HIDDEN.fullmatch(name)
    assert match is not None
    if match["whole"]:
        return _number(result[match["whole"]])
    return _number(result[match["group"]][match["field"]])


def _number(value: float | None) -> float:
    return math.nan if value is None else float(value)
