"""The verdict on a claim of a paper by sign and by size: one rule for all studies.

A part of a claim is a statement of a study's list (AV03d). Its effect is the difference that
decided it, in the claimed direction; sizes.yaml has the printed size and the smallest effect that
counts. README.md states the rules.
"""

from __future__ import annotations

import math
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from enum import Enum
from functools import cache
from pathlib import Path
from typing import Any

import yaml

from advsweep.report.claims.assertions import Assertion
from advsweep.report.claims.kinds import Equivalence, Statements, Trend
from advsweep.report.claims.lists import Claim

FOLDER = Path(__file__).resolve().parent
_UNTRAINED = ("base", "guess", "walker")
_METHOD = ("estimator", "objective", "rollout")
# What steps of another length do not change.
_COSTS = ("cost/", "time/", "memory/", "total/")
_MATCHED = "optimizer.match=step"
_LEVEL = 0.05
_R_SQUARED = re.compile(r"R² = (\S+), 95 % interval \[(\S+), (\S+)\]")
_LAST_MEAN = re.compile(r"= (-?[\d.e+-]+)\)")


class LedgerVerdict(Enum):
    """What a study's runs say of a claim; the first that a part has is that of the claim."""

    CONTRADICTED = "contradicted"
    NO_EFFECT = "no effect that counts"
    STEP_NOT_MATCHED = "not judged: step not matched"
    AT_CHANCE = "not judged: at chance"
    CANNOT_TELL = "cannot tell"
    IN_SIGN = "holds in sign"
    IN_SIZE = "holds in size"


DECIDED = (
    LedgerVerdict.CONTRADICTED,
    LedgerVerdict.NO_EFFECT,
    LedgerVerdict.IN_SIGN,
    LedgerVerdict.IN_SIZE,
)


@dataclass(frozen=True)
class Effect:
    """What was found of a part of a claim, in the claimed direction.

    Attributes:
        found, low, high: the effect with its 95 % interval.
        printed: the size in the paper; NaN without one.
        least: the smallest effect that counts; 0 if any does.
        is_significant: whether p after the study's correction allows a verdict by sign.
    """

    found: float
    low: float
    high: float
    printed: float
    least: float
    is_significant: bool


def judge_effect(effect: Effect) -> LedgerVerdict:
    """Return the verdict on an effect by its 95 % interval."""
    if effect.low > 0 and effect.is_significant:
        is_large = effect.low >= effect.least and not math.isnan(effect.printed)
        return LedgerVerdict.IN_SIZE if is_large else LedgerVerdict.IN_SIGN
    if effect.high < -effect.least and effect.is_significant:
        return LedgerVerdict.CONTRADICTED
    if effect.least > 0 and max(-effect.low, effect.high) < effect.least:
        return LedgerVerdict.NO_EFFECT
    return LedgerVerdict.CANNOT_TELL


@cache
def read_sizes() -> dict[str, Any]:
    """Return what sizes.yaml has: share, margins and printed."""
    sizes: dict[str, Any] = yaml.safe_load((FOLDER / "sizes.yaml").read_text("utf-8"))
    return sizes


def judge_part(claim: Claim, recorded: Mapping[str, Any]) -> dict[str, Any]:
    """Return the verdict on a part of a claim, with the effect and its sizes.

    Args:
        recorded: its line of the study's claims.csv.
    """
    effect = measure_effect(claim, recorded)
    verdict = _judge(claim, recorded, effect)
    if compares_methods(claim) and not has_matched_steps(claim):
        verdict = LedgerVerdict.STEP_NOT_MATCHED
    return {
        "verdict": verdict.value,
        "found": effect.found,
        "low": effect.low,
        "high": effect.high,
        "printed": effect.printed,
        "least": effect.least,
        "printed_in": read_sizes()["printed"].get(claim.id, {}).get("source", ""),
    }


def _judge(claim: Claim, recorded: Mapping[str, Any], effect: Effect) -> LedgerVerdict:
    if recorded["verdict"] == LedgerVerdict.AT_CHANCE.value:
        return LedgerVerdict.AT_CHANCE
    if recorded["n"] < claim.seeds:
        return LedgerVerdict.CANNOT_TELL
    if isinstance(claim.kind, Equivalence):
        return _judge_equivalence(recorded["verdict"])
    return judge_effect(effect)


def _judge_equivalence(verdict: str) -> LedgerVerdict:
    """Return the verdict on a claim that rows are alike: its size is the margin that it states."""
    if verdict == "holds":
        return LedgerVerdict.IN_SIZE
    if verdict == "contradicted":
        return LedgerVerdict.CONTRADICTED
    return LedgerVerdict.CANNOT_TELL


def measure_effect(claim: Claim, recorded: Mapping[str, Any]) -> Effect:
    """Return the effect of a part of a claim, in the claimed direction."""
    entry = read_sizes()["printed"].get(claim.id, {})
    printed = entry.get("printed", math.nan)
    found, low, high = (float(recorded[name]) for name in ("difference", "low", "high"))
    is_significant = not recorded["p_adjusted"] > _LEVEL
    least = 0.0
    if isinstance(claim.kind, Equivalence):
        least = claim.kind.sides[0].constant
    elif isinstance(claim.kind, Trend):
        if claim.kind.sign < 0:
            found, low, high = -found, -high, -low
        if entry.get("of") == "r2":
            found, low, high = _read_r_squared(recorded["reason"])
    elif isinstance(claim.kind, Statements):
        decisive = _decisive(claim.kind.assertions, recorded["reason"])
        margin = 0.0
        if claim.kind.change is None:
            margin = decisive.constant
        if decisive.is_of_two_rows and not math.isnan(printed):
            # The margin makes the statement milder; the paper's claim has none.
            found, low, high = (value - margin for value in (found, low, high))
            is_significant = is_significant or margin != 0
            margin = 0.0
        if margin == 0:
            least = _margin_of(decisive.columns[0])
        if not decisive.above:
            found, low, high = -found, -high, -low
    if entry.get("of") == "level":
        printed *= _read_level(recorded["reason"])
    if not math.isnan(printed):
        least = read_sizes()["share"] * printed
    return Effect(found, low, high, printed, least, is_significant)


def _decisive(assertions: Sequence[Assertion], reason: str) -> Assertion:
    """Return the assertion that a recorded reason is about."""
    [found] = [one for one in assertions if f"{one.text}:" in reason]
    return found


def _margin_of(column: str) -> float:
    """Return the smallest effect in a metric that counts where no size is printed."""
    margins: dict[str, float] = read_sizes()["margins"]
    for beginning, margin in margins.items():
        if column.startswith(beginning) and "steps_to" not in column:
            return margin
    return 0.0


def _read_r_squared(reason: str) -> tuple[float, float, float]:
    match = _R_SQUARED.search(reason)
    assert match is not None, reason
    share, low, high = (float(text) for text in match.groups())
    return share, low, high


def _read_level(reason: str) -> float:
    """Return the mean of the row that another is compared with."""
    match = _LAST_MEAN.search(reason)
    assert match is not None, reason
    return float(match[1])


def compares_methods(claim: Claim) -> bool:
    """Tell whether a part compares trained rows of several estimators, objectives or rollouts.

    Costs do not follow the length of steps, and a claim about this length is not to be matched.
    """
    if all(column.startswith(_COSTS) for column in claim.kind.columns):
        return False
    if claim.id.startswith(tuple(read_sizes()["about_steps"])):
        return False
    return any(_are_several_methods(claim, rows) for rows in _rows_of_comparisons(claim))


def _rows_of_comparisons(claim: Claim) -> list[list[str]]:
    """Return the names of the rows that each statement of a part compares."""
    if isinstance(claim.kind, Statements):
        return [[term.row for term in one.terms] for one in claim.kind.assertions]
    return [list(claim.kind.rows)]


def _are_several_methods(claim: Claim, rows: Sequence[str]) -> bool:
    methods = [_method(claim, row) for row in rows if row not in _UNTRAINED]
    return any(method != methods[0] for method in methods)


def has_matched_steps(claim: Claim) -> bool:
    """Tell whether first steps were made as long as the reference's."""
    return any(_MATCHED in row for row in claim.kind.rows)


def _method(claim: Claim, row: str) -> dict[str, str]:
    """Return the keys and values of a row's name that make its method."""
    if "=" not in row:
        key = claim.rows[0] if claim.rows else "estimator"
        row = f"{key}={row}"
    pairs = (part.partition("=") for part in row.split())
    return {key: value for key, _, value in pairs if key.partition(".")[0] in _METHOD}
