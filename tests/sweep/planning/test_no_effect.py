"""Settings without an effect: refused, or warned of, when a plan is made."""

from __future__ import annotations

from typing import Any

import pytest

from advsweep.errors import ConfigError
from advsweep.sweep.planning.plan import Plan, make_plan
from advsweep.sweep.registry import config_groups

FAKE = "backend=fake"


# Hydra takes most of the time of a small plan, so plans share what it composed.
GROUPS = config_groups()


def plan(*overrides: str, **options: Any) -> Plan:
    return make_plan([FAKE, *overrides], groups=GROUPS, **options)


@pytest.mark.parametrize(
    ("overrides", "message"),
    [
        (
            ["group_size=1"],
            "group_size: estimator 'grpo' gives advantages of 0 alone to groups of 1, so that "
            "nothing would be trained; expected >= 2, got 1",
        ),
        (["group_size=1", "estimator=grpo_n"], "group_size: estimator 'grpo_n' gives"),
        (["group_size=1", "estimator=rent"], "group_size: estimator 'rent' gives"),
        (["group_size=1", "prompts_per_step=1", "estimator=fade"], "group_size: estimator 'fade'"),
        (["group_size=1", "objective.kl_coef=0.1"], "nothing would be trained"),
        (["group_size=4", "estimator=passk_analytic"], "expected >= 5, got 4"),
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
        (["optimizer.lr=0"], "optimizer.lr: expected > 0, got 0"),
        (
            ["optimizer.match=mass", "estimator=maxrl"],
            "optimizer.match: the steps of 'adamw' do not depend on the size of advantages",
        ),
        (["optimizer.match=max_advantage"], "match=max_advantage would make them differ by"),
        (["steps=0"], "steps: expected >= 1, got 0"),
        (["generation.temperature=0"], "generation.temperature: expected > 0, got 0"),
        (["evaluation.n=16", "evaluation.k=[1,64]"], "at most n=16, got 64"),
    ],
)
def test_a_run_that_can_train_nothing_is_refused(overrides: list[str], message: str) -> None:
    with pytest.raises(ConfigError) as caught:
        plan(*overrides, fetch=False)
    assert message in str(caught.value)


@pytest.mark.parametrize(
    "overrides",
    [
        [],
        ["group_size=1", "estimator=reinforce"],
        ["group_size=1", "estimator=avspo"],
        ["group_size=2", "estimator=rloo"],
        ["rollout=dynamic_sampling"],
        ["rollout=filter_drop", "group_size=2"],
        ["rollout=reference", "estimator=aapo"],
        ["generation=transformers", "generation.top_k=1", "estimator=reinforce"],
        ["optimizer=sgd", "optimizer.match=mass", "estimator=maxrl"],
        ["optimizer=sgd", "backend=bandit", "model=table", "task=bandit", "optimizer.match=step"],
        ["backend=tiny", "backend.minibatches=1", "objective.clip_low=0", "objective.clip_high=0"],
        ["backend=tiny", "objective=cross_entropy"],
    ],
)
def test_what_trains_is_neither_refused_nor_warned_of(overrides: list[str]) -> None:
    assert list(plan(*overrides, single=True).warnings) == []


def test_an_estimator_of_zeros_is_refused_whatever_it_is_called() -> None:
    expected = (
        r"estimator 'passk_analytic' gives advantages of 0 alone to groups of 8,.* \(4 runs\)$"
    )
    with pytest.raises(ConfigError, match=expected):
        plan("estimator=grpo,passk_analytic", "estimator.k=8", "group_size=8,9", "seed=0,1,2,3")


@pytest.mark.parametrize(
    ("overrides", "warning"),
    [
        (
            ["group_size=1", "objective.entropy_coef=0.1"],
            "group_size: estimator 'grpo' gives advantages of 0 alone to groups of 1; only other "
            "terms of the objective, and weight decay, train",
        ),
        (["group_size=1", "optimizer.weight_decay=0.1"], "only other terms"),
        (["optimizer.warmup_steps=300"], "optimizer.warmup_steps: the learning rate never rises"),
        (["evaluation.every=500"], "evaluation.every: only the evaluations before and after"),
        (
            ["evaluation.at=[2,200,256,512]"],
            "evaluation.at: no evaluation is made after step 256, which is above steps=200",
        ),
        (
            ["backend=tiny", "objective.clip_low=0", "objective.clip_high=0"],
            "objective: 'clipped' gives no gradient to tokens",
        ),
        (["evaluation.n=16"], "evaluation.k: 1, 8, 16 instead of 1, 8, 64, 128"),
        (["stopping=median", "steps=20"], "stopping: rule 'median' judges no run"),
        (["stopping=asha"], "stopping: rule 'asha' compares at least 3 configurations"),
    ],
)
def test_what_may_be_wanted_is_warned_of(overrides: list[str], warning: str) -> None:
    [found] = plan(*overrides).warnings
    assert found.startswith(warning) or warning in found


def test_a_rule_that_can_stop_a_run_is_not_warned_of() -> None:
    rule = ["stopping=asha", "optimizer.lr=1e-4,2e-4,3e-4"]
    assert list(plan(*rule).warnings) == []
    assert list(plan("stopping=acr").warnings) == []


def test_a_warning_says_of_how_many_runs_it_is() -> None:
    [found] = plan("optimizer.warmup_steps=10,300", "seed=0,1,2").warnings
    assert found.endswith("as 300 is above steps=200 (3 runs)")


def test_the_k_of_a_file_fit_the_samples_of_the_command_line() -> None:
    found = plan("evaluation=avg32", "evaluation.n=16")
    assert found.runs[0].run.evaluation.k == (1, 8, 16)
    assert plan("evaluation.n=100").runs[0].run.evaluation.k == (1, 8, 64, 100)
    assert plan("evaluation.n=128").warnings == []


def test_what_is_found_out_of_one_run_holds_for_its_replicates(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    from advsweep.diagnostics import probes as effect

    calls = []
    found = effect.has_advantages

    def counted(*arguments: Any, **options: Any) -> bool:
        calls.append(arguments)
        return found(*arguments, **options)

    monkeypatch.setattr(effect, "has_advantages", counted)
    plan("estimator=grpo,fade", "group_size=4,8", "seed=range(50)")
    assert len(calls) == 4
