"""The rules, as functions of means that can be checked on paper."""

from __future__ import annotations

import pytest

from advsweep.errors import ConfigError, UnknownNameError
from advsweep.names import ACR
from advsweep.store import Owner
from advsweep.sweep.early_stopping import EarlyAcr, StoppingCheck
from advsweep.sweep.scheduler.runs import schedule_runs

# The early ACR is the mean over the first 5 steps.
RULE = EarlyAcr(first=5, threshold=0.8)


def early(acr):
    """Means of a run whose early ACR is known."""
    return lambda metric, first, last: {(ACR, 1, 5): acr}.get((metric, first, last))


def test_the_rule_judges_after_its_first_steps():
    assert [step for step in range(1, 101) if RULE.is_due(step)] == [5]


def test_an_early_acr_above_the_threshold_stops():
    assert RULE.judge(early(0.9), 5) == "ACR over the first 5 steps is 0.900, above 0.8"
    assert RULE.judge(early(0.8), 5) is None
    assert RULE.judge(early(None), 5) is None


def test_the_early_acr_is_that_of_all_replicates_that_got_so_far(plan, store):
    ids = [unit.run_id for unit in schedule_runs(plan("seed=0,1,2"), store, force=False)]
    for run_id, acr, steps in zip(ids, (0.9, 0.5, 0.9), (5, 5, 4), strict=True):
        store.leases.claim(run_id, Owner.current(), holder=Owner.current())
        store.metrics.record(run_id, [(ACR, s, acr) for s in range(1, steps + 1)], step=steps)

    def judged(threshold):
        store.runs.set_stopping(ids, EarlyAcr(first=5, threshold=threshold).rule())
        [own] = store.runs.select(ids=ids[:1])
        return StoppingCheck(store, own).judge(5)

    # (0.9 + 0.5) / 2 = 0.7
    assert judged(0.7) is None
    assert judged(0.69) == "ACR over the first 5 steps is 0.700, above 0.69"


@pytest.mark.parametrize("name", ["asha", "median"])
def test_rules_of_earlier_versions_are_refused(name, plan):
    with pytest.raises(ConfigError, match=rf"^stopping: '{name}' cannot .*sweep\.race .*none"):
        plan(f"stopping={name}")


def test_runs_with_a_rule_of_an_earlier_version_are_read_and_not_trained(plan, store):
    [unit] = schedule_runs(plan(), store, force=False)
    run_id = unit.run_id
    store.runs.set_stopping([run_id], {"name": "asha", "grace": 25, "factor": 3})
    [old] = store.runs.select(ids=[run_id])
    assert old.stopping == {"name": "asha", "grace": 25, "factor": 3}
    with pytest.raises(UnknownNameError, match=r"^stopping: 'asha' cannot be built: .*sweep\.race"):
        StoppingCheck(store, old)
