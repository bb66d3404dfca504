"""The rules, as functions of means that can be checked on paper."""

from __future__ import annotations

import pytest

from advsweep.sweep.early_stopping import ACR, Asha, EarlyAcr, MedianRule, ObservedRun

REWARD = "reward/mean"


def means_of(curves):
    """Means as a store has them."""

    def mean(metric, first, last):
        if metric not in curves:
            return None
        chosen = [v for step, v in zip(*curves[metric], strict=True) if first <= step <= last]
        return sum(chosen) / len(chosen) if chosen else None

    return mean


def trial(config, reward=0.0, *, acr=0.0, step=10):
    """A run of 10 steps planned, with constant curves up to `step`."""
    steps = range(1, step + 1)
    mean = means_of({REWARD: (steps, [reward] * step), ACR: (steps, [acr] * step)})
    return ObservedRun(config_hash=config, step=step, steps=10, mean=mean)


def rewards(*values):
    """One run of each of some configurations."""
    return [trial(f"{i}", value) for i, value in enumerate(values)]


def due(rule, last=100):
    return [step for step in range(1, last + 1) if rule.is_due(step)]


def test_when_rules_judge():
    assert due(EarlyAcr(first=30)) == [30]
    assert due(MedianRule(grace=20, every=35)) == [20, 55, 90]
    # Rungs at 4, 4·3 and 4·9; the next is at 108.
    assert due(Asha(grace=4, factor=3)) == [4, 12, 36]


# The early ACR is the mean over the first 5 steps.
ACR_RULE = EarlyAcr(first=5, threshold=0.8)


def test_an_early_acr_above_the_threshold_stops():
    reason = "ACR over the first 5 steps is 0.900, above 0.8"
    assert ACR_RULE.judge(trial("a", acr=0.9, step=5), [], 5) == reason
    assert ACR_RULE.judge(trial("a", acr=0.8, step=5), [], 5) is None


def test_the_early_acr_is_that_of_all_replicates_that_got_so_far():
    own, sibling = trial("a", acr=0.9, step=5), trial("a", acr=0.5)
    # (0.9 + 0.5) / 2 = 0.7
    assert ACR_RULE.judge(own, [sibling], 5) is None
    assert ACR_RULE.judge(own, [trial("b", acr=0.5)], 5) is not None
    assert ACR_RULE.judge(own, [trial("a", acr=0.1, step=4)], 5) is not None


MEDIAN = MedianRule(grace=5, every=5, window=2, minimum=3)


def test_the_median_rule_stops_what_is_below_the_median_of_the_others():
    others = rewards(0.2, 0.4, 0.9)
    assert MEDIAN.judge(trial("a", 0.3, step=5), others, 5) == (
        "reward/mean over steps 4 to 5 is 0.300, worse than 0.400, the median of 3 other "
        "configurations"
    )
    assert MEDIAN.judge(trial("a", 0.4, step=5), others, 5) is None


def test_the_median_rule_waits_for_enough_others_at_the_step():
    own = trial("a", 0.1, step=5)
    assert MEDIAN.judge(own, rewards(0.9, 0.9), 5) is None
    assert MEDIAN.judge(own, [*rewards(0.9, 0.9), trial("b", 0.9, step=4)], 5) is None
    assert MEDIAN.judge(own, [*rewards(0.9, 0.9), trial("b", 0.9, step=5)], 5) is not None


def test_of_some_metrics_less_is_better():
    rule = MedianRule(grace=5, window=2, minimum=3, better="lower")
    others = rewards(0.2, 0.4, 0.9)
    assert rule.judge(trial("a", 0.5, step=5), others, 5) is not None
    assert rule.judge(trial("a", 0.3, step=5), others, 5) is None


ASHA = Asha(grace=5, factor=3, window=2)


@pytest.mark.parametrize(
    ("others", "stopped"),
    [
        # n = 1 and 2 are less than the factor.
        ((), False),
        ((0.9,), False),
        # n = 3 to 5: one passes; n = 6: two do. The run has 0.5.
        ((0.4, 0.3), False),
        ((0.9, 0.3), True),
        ((0.9, 0.3, 0.2, 0.1), True),
        ((0.9, 0.4, 0.3, 0.2, 0.1), False),
        ((0.9, 0.8, 0.3, 0.2, 0.1), True),
        # Ties pass.
        ((0.5, 0.5), False),
    ],
)
def test_asha_lets_one_of_factor_pass(others, stopped):
    reason = ASHA.judge(trial("a", 0.5, step=5), rewards(*others), 5)
    assert (reason is not None) == stopped


@pytest.mark.parametrize("rule", [ACR_RULE, MEDIAN, ASHA])
def test_a_run_without_the_metric_goes_on(rule):
    bare = ObservedRun(config_hash="a", step=5, steps=10, mean=means_of({}))
    assert rule.judge(bare, rewards(0.9, 0.9, 0.9), 5) is None
