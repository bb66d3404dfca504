"""The verdict on an idea: what its runs show beside RLOO's, and where it stands."""

from __future__ import annotations

import math
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import Any

from advsweep.errors import ReportError
from advsweep.judging.leaderboard import ListedArm, read_leaderboard
from advsweep.judging.plans import Setting
from advsweep.judging.training import TrainedJudge
from advsweep.report.figures.data import FigureData, NamedRuns
from advsweep.report.figures.matched import matched
from advsweep.report.tables.build import build_report
from advsweep.report.tables.comparison import LEVEL
from advsweep.report.tables.request import ReportRequest
from advsweep.report.tables.types import Difference, Report
from advsweep.statistics import equivalence_margin
from advsweep.statistics.racing import DuelVerdict, failure_bound
from advsweep.store import Status, Store
from advsweep.store.sanity import find_no_signal
from advsweep.tasks.controls import CONTROL


class VerdictKind(StrEnum):
    """What is known of an idea beside RLOO, in the first outcome.

    `SAME`: its advantages are RLOO's, so that nothing was trained. `EQUIVALENT`: the difference is
    smaller than the margin, whether or not it is significant. `FAILED`: no rate can be used.
    """

    SAME = "the same"
    EQUIVALENT = "equivalent"
    BETTER = "better"
    WORSE = "worse"
    OPEN = "cannot tell"
    FAILED = "failed"


@dataclass(frozen=True, kw_only=True)
class Measured:
    """A difference to RLOO with its interval.

    Attributes:
        low, high: the ends of the 95 % interval.
        p_adjusted: over the primary outcomes of the report; NaN without a spread.
        equal_within: the smallest margin within which it is equivalent.
        is_equivalent: within the margin of the verdict, after the correction.
    """

    difference: float
    low: float
    high: float
    n: int
    p_adjusted: float = math.nan
    equal_within: float = math.nan
    is_equivalent: bool = False

    @property
    def is_significant(self) -> bool:
        return self.p_adjusted <= LEVEL


@dataclass(frozen=True, kw_only=True)
class OutcomeRow:
    """An outcome of the idea beside RLOO's.

    Attributes:
        column: its name in reports, such as `pass@32[above=guess]`.
        header: what tables call it.
        idea, baseline: their means over seeds.
        to_baseline: the difference.
        repetition: the difference of RLOO's A/A to RLOO; None without one.
    """

    column: str
    header: str
    idea: float
    baseline: float
    to_baseline: Measured
    repetition: Measured | None


@dataclass(frozen=True, kw_only=True)
class MatchedRow:
    """An outcome where pass@1 is equal.

    Attributes:
        level: the mean pass@1 at which runs are compared.
        n: how many seeds have such a point.
    """

    outcome: str
    level: float
    difference: float
    low: float
    high: float
    n: int


@dataclass(frozen=True, kw_only=True)
class EarlyEnd:
    """The race was settled before all seeds were trained.

    Attributes:
        low, high: the interval of the difference, which holds at every look.
        level: with which probability.
        seeds, most: how many seeds there are, and how many there might have been.
    """

    verdict: str
    difference: float
    low: float
    high: float
    level: float
    seeds: int
    most: int


@dataclass(frozen=True, kw_only=True)
class Verdict:
    """The verdict on an idea.

    Attributes:
        margin: below which differences of pass@1 do not matter.
        outcomes: the first decides; empty where nothing can be compared.
        matched: at equal pass@1; empty where no seeds can be compared so.
        early: how the race ended before its last seed; None if all seeds are there.
        rate, baseline_rate: the learning rates; None where both have that of a sweep file.
        rates: how many were tried.
        is_at_edge: whether the idea's rate is the smallest or largest that was tried.
        seeds: seeds of the idea; `failed` of them failed.
        failures: reasons of failed runs, each once.
        without_signal: what kept runs from learning anything, each cause once.
        ideas: how many ideas were judged on these seeds in this store.
        listed: the leaderboard's arms in this setting; empty in another setting.
    """

    kind: VerdictKind
    margin: float = 0.02
    outcomes: Sequence[OutcomeRow] = ()
    matched: Sequence[MatchedRow] = ()
    early: EarlyEnd | None = None
    rate: float | None = None
    baseline_rate: float | None = None
    rates: int = 0
    is_at_edge: bool = False
    seeds: int = 0
    failed: int = 0
    failures: Sequence[str] = ()
    without_signal: Sequence[str] = ()
    ideas: int = 1
    listed: Sequence[ListedArm] = ()

    @property
    def settled_by(self) -> EarlyEnd | None:
        """The early end of the race, if it is the verdict: of runs that learned, that is."""
        return None if self.without_signal else self.early

    @property
    def failure_bound(self) -> float:
        """The largest share of failing runs that the seeds do not exclude."""
        return failure_bound(self.failed, self.seeds)


def reach_verdict(
    store: Store, name: str, setting: Setting, trained: TrainedJudge
) -> tuple[Verdict, Report | None]:
    """Return the verdict on the trained runs of a judge, and the report that it rests on.

    Args:
        name: of the sweep.

    Raises:
        ReportError: the runs cannot be compared.
    """
    arm = None if trained.tuning is None else trained.tuning.arms[0]
    rate = None if arm is None else arm.chosen
    failures = tuple(dict.fromkeys(trained.failures.values()))
    if trained.race is None or trained.raced is None:
        return Verdict(kind=VerdictKind.FAILED, failures=failures), None
    standing = trained.race.standings[1]
    margin = trained.race.race.margin
    if standing.failed == standing.seeds:
        failed = Verdict(
            kind=VerdictKind.FAILED,
            rate=rate,
            seeds=standing.seeds,
            failed=standing.failed,
            failures=failures,
        )
        return failed, None
    report = build_report(store, ReportRequest(name, margins=[f"{margin:g}"]))
    outcomes = _outcome_rows(report, _arms_of(trained))
    early = _early_end(trained)
    without_signal = _find_no_signal(store, name)
    verdict = Verdict(
        # Runs that learn nothing are alike, whatever their estimator is.
        kind=VerdictKind.OPEN if without_signal else _decide(outcomes, early),
        margin=margin,
        outcomes=outcomes,
        matched=_matched_rows(store, name),
        early=early,
        rate=rate,
        baseline_rate=setting.baseline_rate,
        rates=0 if arm is None else len(arm.grid),
        is_at_edge=arm is not None and arm.is_at_edge,
        seeds=standing.seeds,
        failed=standing.failed,
        failures=failures,
        without_signal=without_signal,
        ideas=_count_ideas(store, setting.name),
        listed=read_leaderboard(setting.name) if setting.is_listed else (),
    )
    return verdict, report


def _find_no_signal(store: Store, name: str) -> tuple[str, ...]:
    """Return why runs of a sweep learned nothing, if half of them or more did not."""
    runs = [run.id for run in store.runs.select(sweep=name, status=Status.DONE)]
    found = find_no_signal(store, runs)
    if 2 * len(found) < len(runs):
        return ()
    return tuple(dict.fromkeys(found.values()))


def _arms_of(trained: TrainedJudge) -> tuple[str, str]:
    """Return the configuration hashes of RLOO and of the idea."""
    assert trained.raced is not None
    hashes = dict.fromkeys(planned.run.config_hash for planned in trained.raced.runs)
    baseline, idea = hashes
    return baseline, idea


def _outcome_rows(report: Report, arms: tuple[str, str]) -> list[OutcomeRow]:
    places = {row.arm: place for place, row in enumerate(report.rows) if row.arm}
    baseline, idea = (places[arm] for arm in arms)
    repetition = next(
        (p for p, row in enumerate(report.rows) if row.arm and row.arm not in arms), None
    )
    found = {(d.row, d.column.name): d for d in report.differences if d.is_primary}
    rows = []
    for column in report.outcomes:
        difference = found.get((idea, column.name))
        if difference is None:
            continue
        repeated = None if repetition is None else found.get((repetition, column.name))
        rows.append(
            OutcomeRow(
                column=column.name,
                header=column.header,
                idea=report.rows[idea].cells[column.name].mean,
                baseline=report.rows[baseline].cells[column.name].mean,
                to_baseline=_measured(difference),
                repetition=None if repeated is None else _measured(repeated),
            )
        )
    if not rows:
        raise ReportError(
            "the judge has no outcome that two seeds of both arms have; `advsweep report` shows "
            "what there is"
        )
    return rows


def _measured(difference: Difference) -> Measured:
    comparison = difference.comparison
    return Measured(
        difference=comparison.difference,
        low=comparison.low,
        high=comparison.high,
        n=comparison.n,
        p_adjusted=difference.p_adjusted,
        equal_within=equivalence_margin(comparison),
        is_equivalent=difference.p_equal <= LEVEL,
    )


def _early_end(trained: TrainedJudge) -> EarlyEnd | None:
    assert trained.race is not None
    assert trained.raced is not None
    standing = trained.race.standings[1]
    duel = standing.to_baseline
    most = len(trained.race.runs[1])
    if duel is None or not duel.looks or duel.verdict is DuelVerdict.OPEN or standing.seeds >= most:
        return None
    look = duel.looks[-1]
    return EarlyEnd(
        verdict=duel.verdict.value,
        difference=look.mean,
        low=look.low,
        high=look.high,
        level=1 - trained.race.race.alpha,
        seeds=standing.seeds,
        most=most,
    )


def _decide(outcomes: Sequence[OutcomeRow], early: EarlyEnd | None) -> VerdictKind:
    """Return the verdict by the first outcome; an early end of the race settles it."""
    if early is not None:
        kinds: Mapping[str, VerdictKind] = {
            DuelVerdict.ABOVE: VerdictKind.BETTER,
            DuelVerdict.BELOW: VerdictKind.WORSE,
            DuelVerdict.EQUAL: VerdictKind.EQUIVALENT,
        }
        return kinds[early.verdict]
    first = outcomes[0].to_baseline
    if first.is_equivalent:
        return VerdictKind.EQUIVALENT
    if not first.is_significant:
        return VerdictKind.OPEN
    return VerdictKind.BETTER if first.difference > 0 else VerdictKind.WORSE


def _matched_rows(store: Store, name: str) -> list[MatchedRow]:
    """Return the differences of the idea to RLOO where pass@1 is equal."""
    runs = store.runs.select(sweep=name, newest_first=False)
    try:
        chart = matched(FigureData(store, NamedRuns(runs, name, name)))
    except ReportError:
        return []
    records: Sequence[Mapping[str, Any]] = chart.records
    return [
        MatchedRow(
            outcome=record["outcome"],
            level=record["level"],
            difference=record["difference"],
            low=record["low"],
            high=record["high"],
            n=record["n"],
        )
        for record in records
        if not record[CONTROL] and record["n"] >= 2
    ]


def _count_ideas(store: Store, setting: str) -> int:
    """Return how many ideas have been judged in a setting in this store."""
    form = re.compile(rf"judge-.+-{re.escape(setting)}(-\d+)?")
    return sum(form.fullmatch(name) is not None for name in store.sweeps.names()) or 1
