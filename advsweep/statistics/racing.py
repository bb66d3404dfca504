"""Races: which arms are settled, and which get further seeds.

Arms are compared by their differences on the same seeds, each pair by a confidence sequence. Every
arm is compared with the baseline and with the leader. It gets seeds while one of its comparisons is
open, unless it is worse than another arm, or nothing that may be expected of the seeds that are
left would settle it.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum

from scipy import special

from advsweep.statistics.sequences import Look, confidence_sequence, first_look, half_width

# An arm is given up if not even a mean this many standard errors off would be settled at the end.
REACH = 2.0

# The values of an arm by seed: NaN where there will be none, None where it is not known yet.
Values = Sequence[float | None]


class DuelVerdict(StrEnum):
    """What a comparison has shown; `EQUAL`: the difference is smaller than the margin."""

    ABOVE = "above"
    BELOW = "below"
    EQUAL = "equal"
    OPEN = "open"


@dataclass(frozen=True)
class Duel:
    """The difference of two arms on the seeds that both have.

    Attributes:
        looks: after each seed, from the second on.
        verdict: what the last one shows.
        is_racing: whether it is open and worth further seeds. It is not where it would stay open
            even if the mean were to move by `REACH`.
        missing: the number of further seeds that settle it if they go on like the others; None if
            the seeds that are left do not.
    """

    looks: Sequence[Look]
    verdict: DuelVerdict
    is_racing: bool
    missing: int | None


def judge_duel(
    differences: Sequence[float], *, alpha: float, margin: float, most: int, gives_up: bool = True
) -> Duel:
    """Judge a difference by its values so far, of at most `most`.

    Args:
        gives_up: whether it is no longer racing once its remaining values would not settle it.
    """

    def judge(low: float, high: float) -> DuelVerdict:
        if low > 0:
            return DuelVerdict.ABOVE
        if high < 0:
            return DuelVerdict.BELOW
        return DuelVerdict.EQUAL if max(-low, high) < margin else DuelVerdict.OPEN

    looks = confidence_sequence(differences, alpha)
    if not looks:
        return Duel(looks, DuelVerdict.OPEN, is_racing=True, missing=None)
    n = len(differences)
    last = looks[-1]
    verdict = judge(last.low, last.high)
    if verdict is not DuelVerdict.OPEN:
        return Duel(looks, verdict, is_racing=False, missing=0)
    missing = None
    for later in range(n + 1, most + 1):
        half = half_width(last.sd, later, alpha)
        ends = max(last.low, last.mean - half), min(last.high, last.mean + half)
        if judge(*ends) is not DuelVerdict.OPEN:
            missing = later - n
            break
    if not gives_up:
        return Duel(looks, verdict, is_racing=n < most, missing=missing or most - n)
    # Giving up makes no verdict false. Of those to come it loses about 1 %, and where there is no
    # difference it saves more than half of the seeds.
    reach = REACH * last.sd * math.sqrt(max(1 / n - 1 / most, 0))
    half = half_width(last.sd, most, alpha)
    least = max(abs(last.mean) - reach, 0)
    is_racing = abs(last.mean) + reach > half or least + half < margin
    return Duel(looks, verdict, is_racing, missing)


class Place(StrEnum):
    """How an arm stands against the best; `EQUAL` to it within the margin."""

    BEST = "best"
    WORSE = "worse"
    EQUAL = "equal"
    OPEN = "open"


@dataclass(frozen=True)
class Standing:
    """How an arm stands.

    Attributes:
        seeds: number of its seeds that are over, counted from the first.
        to_baseline, to_leader: its difference to them; None for these themselves.
        is_racing: whether further seeds are to settle it.
        wanted: the number of seeds that it is to have next, for itself or for an arm that is
            compared with it.
        failed: number of its seeds without a value, which no difference counts.
    """

    seeds: int
    place: Place
    to_baseline: Duel | None
    to_leader: Duel | None
    is_racing: bool
    wanted: int
    failed: int

    @property
    def has_failed(self) -> bool:
        """Whether it has seeds, and none of them a value."""
        return self.seeds > 0 and self.failed == self.seeds

    @property
    def is_equal(self) -> bool:
        """Whether it is equal to the baseline or to the best within the margin."""
        duels = (self.to_baseline, self.to_leader)
        return any(duel is not None and duel.verdict is DuelVerdict.EQUAL for duel in duels)


def failure_bound(failed: int, seeds: int, alpha: float = 0.05) -> float:
    """Return the largest share of failing runs that so many failures do not exclude.

    A run that fails is rare and far off, so that the differences of the other seeds say nothing of
    it: the bound is the exact upper limit of a binomial share (Clopper and Pearson, 1934), on one
    side. No failure in 5 seeds leaves 1 - .05^(1/5) = .45.
    """
    if failed >= seeds:
        return 1.0
    return float(special.betaincinv(failed + 1, seeds - failed, 1 - alpha))


def level_of(arms: int, alpha: float, *, baseline: bool) -> float:
    """Return the alpha of one pair, so that no verdict is false with probability 1 - alpha.

    Bonferroni's correction: half of alpha is for the pairs with the baseline, half for the others.

    Args:
        arms: number of arms, 2 or more.
        baseline: whether the baseline is one of the pair.
    """
    if arms == 2:
        return alpha
    return alpha / 2 / ((arms - 1) if baseline else (arms - 1) * (arms - 2) / 2)


def judge_race(
    values: Sequence[Values],
    *,
    margin: float,
    alpha: float,
    lower: bool = False,
    gives_up: bool = True,
) -> list[Standing]:
    """Judge a race by the values of all arms so far.

    The result depends on the values alone, and not on when they came: a pair has the seeds up to
    the first one that is not known yet. Whatever is trained, all verdicts hold at every look with
    probability 1 - alpha together.

    Args:
        values: [arms][seeds], the baseline first; each arm has as many as the race has at most.
        lower: whether lower values are better.
        gives_up: whether an arm that its remaining seeds would not settle gets no more.
    """

    def judge(differences: Sequence[float], level: float) -> Duel:
        return judge_duel(
            differences, alpha=level, margin=margin, most=len(values[0]), gives_up=gives_up
        )

    race = _Race.of(values, judge, alpha=alpha, lower=lower)
    places = {arm: race.place(arm) for arm in range(race.arms)}
    targets = {arm: race.targets(arm) for arm in range(race.arms) if places[arm] is not Place.WORSE}
    wanted = [0] * race.arms
    for arm, by_other in targets.items():
        if by_other:
            # What settles it soonest comes first; the other arm needs the same seeds.
            soonest = min(by_other.values())
            for each in (arm, *by_other):
                wanted[each] = max(wanted[each], soonest)
    return [
        Standing(
            seeds=len(race.values[arm]),
            place=places[arm],
            to_baseline=race.to_baseline.get(arm),
            to_leader=race.to_leader.get(arm),
            is_racing=bool(targets.get(arm)),
            wanted=wanted[arm],
            failed=sum(not math.isfinite(value) for value in race.values[arm]),
        )
        for arm in range(race.arms)
    ]


@dataclass(frozen=True)
class _Race:
    """The comparisons of a race; arm 0 is the baseline.

    Attributes:
        values: of each arm, the values up to the first one that is not known yet.
        most: the most seeds of an arm.
        first: the first look that can settle anything, so that each arm has as many seeds.
        worse: what a comparison shows if the arm is worse than the other.
        to_baseline, to_leader: the difference of each other arm to them.
    """

    values: Sequence[Sequence[float]]
    most: int
    first: int
    worse: DuelVerdict
    leader: int
    to_baseline: Mapping[int, Duel]
    to_leader: Mapping[int, Duel]

    @classmethod
    def of(
        cls,
        values: Sequence[Values],
        judge: Callable[[Sequence[float], float], Duel],
        *,
        alpha: float,
        lower: bool,
    ) -> _Race:
        """Compare every arm with the baseline and with the leader; see `judge_race`.

        Args:
            judge: judges differences at an alpha.
        """
        arms = len(values)
        most = len(values[0])
        complete = [_until_unknown(of_arm) for of_arm in values]

        def compare(arm: int, other: int) -> Duel:
            level = level_of(arms, alpha, baseline=0 in (arm, other))
            pairs = zip(complete[arm], complete[other], strict=False)
            differences = [value - of_other for value, of_other in pairs]
            finite = [difference for difference in differences if math.isfinite(difference)]
            return judge(finite, level)

        def lead(arm: int) -> float:
            looks = to_baseline[arm].looks if arm else ()
            if not looks:
                return 0.0
            return -looks[-1].mean if lower else looks[-1].mean

        to_baseline = {arm: compare(arm, 0) for arm in range(1, arms)}
        leader = max(range(arms), key=lead)
        return cls(
            values=complete,
            most=most,
            first=first_look(level_of(arms, alpha, baseline=True)),
            worse=DuelVerdict.ABOVE if lower else DuelVerdict.BELOW,
            leader=leader,
            to_baseline=to_baseline,
            to_leader={arm: compare(arm, leader) for arm in range(arms) if arm != leader},
        )

    @property
    def arms(self) -> int:
        """The number of arms."""
        return len(self.values)

    def duels(self, arm: int) -> dict[int, Duel]:
        """Return the comparisons of an arm, by the other arm."""
        duels = {0: self.to_baseline.get(arm), self.leader: self.to_leader.get(arm)}
        return {other: duel for other, duel in duels.items() if duel is not None}

    def place(self, arm: int) -> Place:
        """Return how an arm stands against the best."""
        if arm == self.leader:
            return Place.BEST
        if any(duel.verdict is self.worse for duel in self.duels(arm).values()):
            return Place.WORSE
        return Place.EQUAL if self.to_leader[arm].verdict is DuelVerdict.EQUAL else Place.OPEN

    def targets(self, arm: int) -> dict[int, int]:
        """Return the seeds that an arm is to have next, by the arm that it is compared with."""
        targets = {}
        for other, duel in self.duels(arm).items():
            shared = min(len(self.values[arm]), len(self.values[other]))
            all_failed = shared >= self.first and not duel.looks
            if not duel.is_racing or shared == self.most or all_failed:
                continue
            # Half of what should do, as that is uncertain and a look costs nothing.
            step = max(1, (duel.missing or 1) // 2)
            targets[other] = min(self.most, max(self.first, shared + step))
        return targets


def _until_unknown(values: Values) -> list[float]:
    """Return the values of an arm up to the first one that is not known yet."""
    complete: list[float] = []
    for value in values:
        if value is None:
            break
        complete.append(value)
    return complete
