"""Settings without an effect: refused, or warned of, when a plan is made."""

from __future__ import annotations

import pytest

from advsweep.errors import ConfigError
from advsweep.sweep.planning.plan import make_plan
from advsweep.sweep.registry import config_groups

FAKE = "backend=fake"


# Hydra takes most of the time of a small plan, so plans share what it composed.
GROUPS = config_groups()


def plan(*overrides, **options):
    return make_plan([FAKE, *overrides], groups=GROUPS, **options)


@pytest.mark.parametrize(
    ("overrides", "message"),
    [
        (
            ["group_size=1"],
            "group_size: estimator 'grpo' gives advantages of 0 alone to groups of 1 with rewards "
            "from 0 to 1, so that nothing would be trained; change group_size",
        ),
        (["group_size=1", "prompts_per_step=1", "estimator=fade"], "group_size: estimator 'fade'"),
        (["group_size=1", "objective.kl_coef=0.1"], "nothing would be trained"),
        (["group_size=1", "objective=m2po"], "nothing would be trained"),
        (["group_size=4", "estimator=passk_analytic"], "advantages of 0 alone to groups of 4"),
        (["group_size=1", "rollout=filter_drop"], "rollout: policy 'filter_drop' keeps no group"),
        (
            ["group_size=1", "rollout=dynamic_sampling"],
            "rollout: policy 'dynamic_sampling' keeps no group of 1 rollout, whatever",
        ),
        (
            ["rollout=dynamic_sampling", "rollout.max_draws=1", "rollout.draw_prompts=2"],
            "raise rollout.max_draws (now 1)",
        ),
        (["rollout=filter_drop", "rollout.eps_acr=0.7"], "keeps no group of 8 rollouts"),
        (
            ["generation=transformers", "generation.top_k=1"],
            "generation: it always takes the likeliest token",
        ),
        (
            ["optimizer.match=mass", "estimator=maxrl"],
            "optimizer.match: the steps of 'adamw' do not depend on the size of advantages",
        ),
        (["optimizer.match=max_advantage"], "match=max_advantage would make them differ by"),
    ],
)
def test_a_run_that_can_train_nothing_is_refused(overrides, message):
    with pytest.raises(ConfigError) as caught:
        plan(*overrides, fetch=False)
    assert message in str(caught.value)


@pytest.mark.parametrize(
    "overrides",
    [
        [],
        ["group_size=1", "estimator=reinforce"],
        ["rollout=dynamic_sampling"],
        ["rollout=filter_drop", "group_size=2"],
        ["generation=transformers", "generation.top_k=1", "estimator=reinforce"],
        ["optimizer=sgd", "optimizer.match=mass", "estimator=maxrl"],
        ["optimizer=sgd", "backend=bandit", "model=table", "task=bandit", "optimizer.match=step"],
        ["backend=tiny", "objective=cross_entropy"],
    ],
)
def test_what_trains_is_neither_refused_nor_warned_of(overrides):
    assert list(plan(*overrides, single=True).warnings) == []


@pytest.mark.parametrize(
    ("overrides", "warning"),
    [
        (
            ["group_size=1", "objective.entropy_coef=0.1"],
            "of 0 alone to groups of 1 with rewards from 0 to 1; only other terms of the "
            "objective, and weight decay, train",
        ),
        (["group_size=1", "optimizer.weight_decay=0.1"], "only other terms"),
        (["group_size=1", "objective.kl_coef=0.1", "objective.kl_estimator=k1"], "only other"),
        (["optimizer.warmup_steps=300"], "optimizer.warmup_steps: the learning rate never rises"),
        (["evaluation.every=500"], "evaluation.every: only the evaluations before and after"),
        (
            ["evaluation.at=[2,200,256,512]"],
            "evaluation.at: no evaluation is made after step 256, which is above steps=200",
        ),
        (
            ["rollout=greedy", "backend=tiny"],
            "rollout: estimator 'grpo' does not read the greedy_rewards",
        ),
        (["evaluation.n=16"], "evaluation.k: 1, 8, 16 instead of 1, 8, 64, 128"),
        (["stopping=acr", "steps=20"], "stopping: rule 'acr' judges no run"),
    ],
)
def test_what_may_be_wanted_is_warned_of(overrides, warning):
    [found] = plan(*overrides).warnings
    assert found.startswith(warning) or warning in found
