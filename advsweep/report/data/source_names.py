"""Parses what a column is a number of: its name without a window and a cutoff."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

from advsweep.report.data.analyses import analysis_columns
from advsweep.report.data.evaluation_sources import (
    KL_BASE,
    LAWS,
    RAREFIED_SHARE,
    Evaluation,
    Law,
    PassAtK,
    ProblemChoice,
    ProblemMean,
    RarefiedEntropy,
)
from advsweep.report.data.sources import COSTS, Analysis, Metric, Source, Total

_SHARE = r"(?:0?\.\d+|[01]\.?0*)"

# Names of metrics may have an @ before a digit, as no window begins with one: exact/pass@8,
# val/acc/mean@16.
_SOURCE = re.compile(
    rf"total/(?P<total>{'|'.join(COSTS)})"
    rf"|(?P<evaluated>pass@(?P<k>[1-9]\d{{0,8}})"
    r"|entropy/answer|entropy/right|(?P<rarefied>entropy/right_rarefied(?:_share)?)"
    rf"|{KL_BASE}|entropy/token(?=\[)"
    rf"|law/(?:(?P<parameter>[abc])|(?P<fit>mse|aic)/(?P<law>{'|'.join(LAWS)})))"
    r"(?:\[(?P<parts>[^\[\]]+)\])?"
    r"|(?!pass@)(?P<metric>[^@\[\]=<>]+(?:@\d[^@\[\]=<>]*)*)"
)
_PART = re.compile(
    rf"level=(?P<level>\d{{1,9}})|base=(?P<low>{_SHARE}):(?P<base>{_SHARE})|m=(?P<m>\d{{1,4}})"
    r"|(?P<train>split=train)|above=(?P<above>[A-Za-z_]\w*)|(?P<mean>mean)|(?P<task>[^=]+)"
)

# What stands in the brackets of a column, by what it is.
_Parts = Mapping[str, re.Match[str]]


def parse_source(text: str) -> Source | None:
    """Parse a column without a window and a cutoff; return None if it cannot be one.

    Raises:
        PluginError: the package of such columns cannot be used.
    """
    match = _SOURCE.fullmatch(text)
    if match is None:
        return None
    if match["total"]:
        return Total(match["total"])
    if match["metric"]:
        columns = analysis_columns(text)
        return Metric(text) if columns is None else Analysis(text, columns)
    parts = _parse_parts(match["parts"])
    problems = None if parts is None else _choose_problems(parts)
    if parts is None or problems is None:
        return None
    return _make_evaluation(match, parts, problems)


def _parse_parts(text: str | None) -> _Parts | None:
    """Parse what stands in brackets; return None if it cannot stand there."""
    parts: dict[str, re.Match[str]] = {}
    for item in text.split(",") if text else []:
        match = _PART.fullmatch(item.strip())
        kind = "" if match is None else str(match.lastgroup)
        if match is None or kind in parts:
            return None
        parts[kind] = match
    return parts


def _choose_problems(parts: _Parts) -> ProblemChoice | None:
    """Return the choice of problems; None if there is no such choice."""
    choice: dict[str, Any] = {"is_mean": "mean" in parts, "is_train": "train" in parts}
    if "task" in parts:
        choice["task"] = parts["task"]["task"]
    if "level" in parts:
        choice["level"] = int(parts["level"]["level"])
    if "base" in parts:
        low, high = float(parts["base"]["low"]), float(parts["base"]["base"])
        if low >= high:
            return None
        choice["base"] = (low, high)
    problems = ProblemChoice(**choice)
    is_contradiction = problems.is_mean and problems.task is not None
    return None if is_contradiction else problems


def _make_evaluation(
    match: re.Match[str], parts: _Parts, problems: ProblemChoice
) -> Evaluation | None:
    """Return the source; None if it has a part that is of another kind of column."""
    if match["k"]:
        above = parts["above"]["above"] if "above" in parts else None
        return None if "m" in parts else PassAtK(int(match["k"]), above, problems=problems)
    if "above" in parts:
        return None
    if match["rarefied"]:
        is_share = match["rarefied"] == RAREFIED_SHARE
        if "m" not in parts:
            return RarefiedEntropy(is_share=is_share, problems=problems)
        m = int(parts["m"]["m"])
        return RarefiedEntropy(m, is_share, problems=problems) if m >= 2 else None
    if "m" in parts:
        return None
    if match["parameter"]:
        return Law(match["parameter"], problems=problems)
    if match["fit"]:
        return Law(match["fit"], match["law"], problems=problems)
    return ProblemMean(match["evaluated"], problems=problems)
