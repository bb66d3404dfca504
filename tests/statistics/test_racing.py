"""Races: which arms get further seeds, and when they are settled."""

from __future__ import annotations

import math
import random

import pytest

from advsweep.statistics.racing import DuelVerdict, Place, failure_bound, judge_race, level_of

SETTINGS = {"margin": 0.5, "alpha": 0.05}


def drawn(means, most=12, spread=1.0, seed=0):
    """Values of arms: an effect of the seed that all share, and noise of their own."""
    rng = random.Random(seed)
    shared = [rng.gauss(0, 3) for _ in range(most)]
    return [[mean + base + rng.gauss(0, spread) for base in shared] for mean in means]


def raced(values, **changes):
    """Gives each arm the seeds that it is to have next, until that is none."""
    have, looks = [0] * len(values), []
    while True:
        known = [[*own[:n], *[None] * (len(own) - n)] for own, n in zip(values, have, strict=True)]
        standings = judge_race(known, **{**SETTINGS, **changes})
        assert [own.seeds for own in standings] == have
        looks.append(standings)
        wanted = [max(n, own.wanted) for n, own in zip(have, standings, strict=True)]
        if wanted == have:
            return looks
        have = wanted


def verdicts(standings):
    return [own.to_baseline and own.to_baseline.verdict for own in standings]


def test_arms_end_as_they_are_settled_and_the_others_go_on():
    looks = raced(drawn([0, 5, 1, 4.8], most=30, spread=0.5))
    last = looks[-1]
    # The third is worse than the best, whatever the baseline may be.
    assert verdicts(last)[1:] == [DuelVerdict.ABOVE, DuelVerdict.OPEN, DuelVerdict.ABOVE]
    assert [own.place for own in last[:3]] == [Place.WORSE, Place.BEST, Place.WORSE]
    assert not any(own.is_racing for own in last)
    # All have as many seeds before anything can be settled; then those that lag behind end.
    assert [own.seeds for own in looks[1]] == [5, 5, 5, 5]
    assert last[0].seeds <= last[2].seeds < last[3].seeds == last[1].seeds


def test_small_differences_are_equal_and_others_are_not():
    means, most = [0, 0, 0.1], 30
    last = raced(drawn(means, most, spread=0.1))[-1]
    assert verdicts(last)[1:] == [DuelVerdict.EQUAL, DuelVerdict.EQUAL]
    assert {own.place for own in last} == {Place.BEST, Place.EQUAL}
    assert max(own.seeds for own in last) < most
    narrow = raced(drawn([0, 2], most, spread=0.1), margin=0.01)[-1]
    assert verdicts(narrow)[1] is DuelVerdict.ABOVE


def test_an_arm_is_given_up_where_no_seeds_that_are_left_would_settle_it():
    """Its difference is far smaller than the spread, and the margin as well."""
    last = raced(drawn([0, 0], most=20), margin=0.001)[-1]
    assert verdicts(last)[1] is DuelVerdict.OPEN
    assert not last[1].is_racing
    assert last[1].seeds < 20


def test_without_giving_up_an_open_arm_gets_all_seeds_and_a_settled_one_does_not():
    last = raced(drawn([0, 0], most=20), margin=0.001, gives_up=False)[-1]
    assert verdicts(last)[1] is DuelVerdict.OPEN
    assert [own.seeds for own in last] == [20, 20]
    far = raced(drawn([0, 9], most=20), margin=0.001, gives_up=False)[-1]
    assert verdicts(far)[1] is DuelVerdict.ABOVE
    assert far[1].seeds < 20


@pytest.mark.parametrize("lower", [False, True])
def test_the_best_is_the_one_with_the_better_metric(lower):
    last = raced(drawn([0, 5, -5], spread=0.5), lower=lower)[-1]
    assert verdicts(last)[1:] == [DuelVerdict.ABOVE, DuelVerdict.BELOW]
    assert [own.place for own in last].index(Place.BEST) == (2 if lower else 1)


def test_a_seed_counts_once_all_before_it_are_over():
    """In whatever order runs end, a verdict is that of the same seeds."""
    values = drawn([0, 3], spread=0.2)
    whole = judge_race(values, **SETTINGS)
    holed = [list(own) for own in values]
    holed[1][4] = None
    late = judge_race(holed, **SETTINGS)
    assert [own.seeds for own in late] == [12, 4]
    assert late[1].to_baseline.looks == whole[1].to_baseline.looks[:3]
    # A run that failed for good leaves its seed out.
    holed[1][4] = math.nan
    without = judge_race(holed, **SETTINGS)
    assert [own.seeds for own in without] == [12, 12]
    assert without[1].to_baseline.looks[-1].n == 11


def test_the_levels_of_all_pairs_add_up_to_alpha():
    for arms in (2, 3, 4, 20):
        pairs = [(a, b) for b in range(arms) for a in range(b)]
        levels = [level_of(arms, 0.05, baseline=a == 0) for a, _ in pairs]
        assert math.fsum(levels) == pytest.approx(0.05)


def test_alike_arms_are_told_apart_at_any_look_with_probability_alpha():
    races = 400
    wrong = 0
    for seed in range(races):
        values = drawn([0] * 4, most=16, seed=seed)
        # All pairs with all seeds: more than a race ever looks at.
        rotated = [values[place:] + values[:place] for place in range(4)]
        found = [judge_race(own, margin=1e-9, alpha=0.05) for own in rotated]
        duels = [own.to_leader for standings in found for own in standings if own.to_leader]
        duels += [own.to_baseline for own in found[0] if own.to_baseline]
        wrong += any(duel.verdict is not DuelVerdict.OPEN for duel in duels)
    assert wrong / races <= 0.05 + 3 * math.sqrt(0.05 * 0.95 / races)


def test_seeds_without_a_failure_do_not_exclude_rare_ones():
    """(1 - f)^n = .05: f = 1 - .05^(1/5) = .4507, 1 - .05^(1/12) = .2209.

    One failure in 5: the f with (1 - f)^5 + 5 f (1 - f)^4 = .05.
    """
    assert failure_bound(0, 5) == pytest.approx(0.4507, abs=1e-4)
    assert failure_bound(0, 12) == pytest.approx(0.2209, abs=1e-4)
    share = failure_bound(1, 5)
    assert (1 - share) ** 5 + 5 * share * (1 - share) ** 4 == pytest.approx(0.05)
    assert failure_bound(3, 3) == 1
    assert failure_bound(0, 0) == 1


def test_seeds_that_failed_are_counted_and_equal_arms_are_told():
    values = drawn([0, 0, 3], most=8, spread=0.01)
    values[1][2] = math.nan
    last = judge_race(values, **SETTINGS)
    assert [own.failed for own in last] == [0, 1, 0]
    assert [own.is_equal for own in last] == [False, True, False]
