"""What tells the runs of a sweep apart."""

from __future__ import annotations

from advsweep.sweep.labels import config_labels


def named(plan):
    return config_labels(planned.config for planned in plan.runs)


def test_labels_have_what_varies_and_no_more(plan):
    assert named(plan("estimator=grpo,fade", "seed=0,1")) == [
        "grpo seed=0",
        "grpo seed=1",
        "fade seed=0",
        "fade seed=1",
    ]
    assert named(plan("group_size=4,8", "optimizer.lr=1e-4")) == [
        "grpo seed=0 group_size=4",
        "grpo seed=0 group_size=8",
    ]
    assert named(plan("estimator=asym_grpo", "estimator.delta=0.5,2")) == [
        "asym_grpo seed=0 estimator.delta=0.5",
        "asym_grpo seed=0 estimator.delta=2.0",
    ]
