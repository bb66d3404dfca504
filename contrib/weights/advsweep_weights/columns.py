"""Columns of reports, read from the analyses that the two commands store.

    weights/norm, share, s1_over_s2, r1, srank           of all matrices
    weights/r1/head, embedding, layers, layer_3, other   of a part of the model
    hidden/rho/correct, failed                           and hidden/residual/correct, failed
    hidden/along, residual_ratio, clt_baseline           of all rollouts

It imports no torch, as reports never do.
"""

from __future__ import annotations

import math
import re
from collections.abc import Mapping
from typing import Any

from advsweep.report.data.analyses import AnalysisColumns

_WEIGHTS = re.compile(
    r"weights/(?P<field>norm|share|s1_over_s2|r1|srank)"
    r"(?:/(?P<part>head|embedding|layers|layer_\d{1,4}|other))?"
)
_HIDDEN = re.compile(
    r"hidden/(?:(?P<field>rho|residual)/(?P<group>correct|failed)"
    r"|(?P<whole>along|residual_ratio|clt_baseline))"
)


def _of_weights(result: Mapping[str, Any], match: re.Match[str]) -> float:
    """Return a number of the joint change of some matrices, as `PartChange` defines it."""
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


def _of_states(result: Mapping[str, Any], match: re.Match[str]) -> float:
    if match["whole"]:
        return _number(result[match["whole"]])
    return _number(result[match["group"]][match["field"]])


def _number(value: float | None) -> float:
    return math.nan if value is None else float(value)


WEIGHTS = AnalysisColumns("weights", _WEIGHTS, _of_weights, "advsweep weights")
HIDDEN_STATES = AnalysisColumns("hidden_states", _HIDDEN, _of_states, "advsweep hidden-states")
