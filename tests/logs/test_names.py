"""Tables of metric names: what is renamed, what is kept, and which of two names wins."""

from __future__ import annotations

import pytest
import torch

from advsweep.diagnostics import rollout_metrics
from advsweep.errors import UnknownNameError
from advsweep.estimators import GroupBatch, build_estimator
from advsweep.logs.names import TABLES, NameMap


@pytest.mark.parametrize("table", TABLES)
def test_every_table_loads_and_names_columns(table):
    names = NameMap(table)
    assert names.steps
    for theirs, ours in (("reward", "reward/mean"), ("train/reward", "reward/mean")):
        if table not in ("verl", "lm-eval"):
            assert NameMap(table).apply({theirs: 1.0}) == {ours: 1.0}


def test_names_without_an_entry_stay_unless_a_report_cannot_use_them():
    names = NameMap("verl")
    values = {"actor/ppo_kl": 1, "val-core/gsm8k/acc/mean@8": 2, "pass@8": 3, "acc@end": 4}
    assert names.apply({**values, "a[b]=c": 5}) == {
        "actor/ppo_kl": 1, "val-core/gsm8k/acc/mean@8": 2, "pass_at_8": 3, "acc_at_end": 4,
        "a_b__c": 5,
    }  # fmt: skip


def test_our_own_names_lose_the_prefix_of_a_tracker():
    names = NameMap("tensorboard")
    batch = GroupBatch(rewards=torch.tensor([[1.0, 0.0, 0.0], [1.0, 1.0, 1.0]]))
    metrics = rollout_metrics(batch, build_estimator("grpo").compute(batch))
    assert {"mass/success", "solved/1"} <= metrics.keys()
    metrics |= dict.fromkeys(("loss/clip_fraction", "sampler/kl"), 1.0)
    logged = {f"train/{name}": 1.0 for name in metrics}
    # TRL's own reward is the same metric, and ours comes first.
    assert names.apply({**logged, "train/reward": 2.0, "train/kl": 3.0}) == {
        **dict.fromkeys(metrics, 1.0), "train/reward": 2.0, "loss/kl": 3.0,
    }  # fmt: skip


def test_the_first_of_two_names_keeps_the_metric():
    names = NameMap("verl")
    values = {"critic/rewards/mean": 1.0, "critic/score/mean": 2.0}
    assert names.apply(values) == {"critic/rewards/mean": 1.0, "reward/mean": 2.0}
    assert names.renamed == {"critic/score/mean": "reward/mean"}
    assert names.kept == {"critic/rewards/mean"}
    assert names.notes() == ["reward/mean: from critic/score/mean, scores without the KL penalty"]


def test_a_name_that_appears_later_does_not_take_the_metric_over():
    names = NameMap("verl")
    assert names.apply({"critic/rewards/mean": 1.0}) == {"reward/mean": 1.0}
    assert names.apply({"critic/score/mean": 2.0}) == {"critic/score/mean": 2.0}


def test_our_own_name_that_appears_later_gets_another():
    names = NameMap("trl")
    assert names.apply({"reward": 1.0}) == {"reward/mean": 1.0}
    later = names.apply({"reward": 1.0, "reward/mean": 2.0})
    assert later == {"reward/mean": 1.0, "reward/mean_logged": 2.0}


def test_the_users_names_come_first_and_name_the_step():
    names = NameMap("jsonl", {"score": "reward/mean", "epoch": "step"})
    assert names.steps == ("epoch",)
    assert names.apply({"reward": 1.0, "score": 2.0}) == {"reward": 1.0, "reward/mean": 2.0}


def test_an_unknown_table_is_refused_with_the_nearest():
    with pytest.raises(UnknownNameError, match="did you mean 'verl'"):
        NameMap("verll")
