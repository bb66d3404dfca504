"""What steps change: policies exactly, the share of signal, and advantages by behaviour."""

import pytest
import torch

from advsweep.backends.bandit.stack import BanditStack
from advsweep.backends.bandit.update import Experience, action_advantages

ESTIMATORS = ("grpo", "reinforce")
"""The second has advantages that do not sum to zero, so its steps move all logits."""


@pytest.mark.parametrize("rank", [0, 3])
@pytest.mark.parametrize("estimator", ESTIMATORS)
@pytest.mark.parametrize("optimizer", [{"name": "sgd", "lr": 5.0}, {"name": "adamw", "lr": 0.1}])
def test_metrics_are_those_of_the_whole_table(small_run, estimator, rank, optimizer):
    """However they are computed: from the parameters and the policies before and after."""
    run = small_run(
        "bandit",
        estimator={"name": estimator},
        model={"name": "table", "rank": rank},
        optimizer={**optimizer, "match": "none"} if optimizer["name"] == "adamw" else optimizer,
        task={"prompts_per_level": 8},
        prompts_per_step=16,
        backend={"inner_epochs": 2},
    )
    stack = BanditStack([run], run.backend)
    start, last = stack.weights["parameters"].clone().double(), None
    for step in range(1, 4):
        before, policy = stack.weights["parameters"].clone().double(), stack.policy()
        [metrics], experience = stack._train(step)
        assert experience is not None
        assert not isinstance(metrics, Exception)
        change = stack.weights["parameters"].double() - before
        after = stack.policy()
        divergence = (policy.log.exp() * (policy.log - after.log)).double().sum(-1)
        assert metrics["optim/step_norm"] == pytest.approx(change.norm().item(), rel=1e-4)
        total = (stack.weights["parameters"].double() - start).norm().item()
        assert metrics["optim/change_norm"] == pytest.approx(total, rel=1e-4)
        rows = experience.rows
        drawn = divergence if rows is None else divergence.gather(1, rows)
        assert metrics["policy/kl_step"] == pytest.approx(drawn.mean().item(), rel=1e-2, abs=1e-6)
        assert metrics["policy/kl_step"] > 0
        if last is not None:
            cosine = torch.cosine_similarity(change.flatten(), last.flatten(), dim=0).item()
            assert metrics["optim/update_cosine"] == pytest.approx(cosine, abs=1e-4)
        last = change


@pytest.mark.parametrize("estimator", ESTIMATORS)
def test_metrics_of_some_steps_are_those_of_every_step(small_run, train, tmp_path, estimator):
    """The cosine included, although the step before is measured for it alone."""
    points = {}
    for every in (1, 3):
        run = small_run(
            "bandit",
            estimator={"name": estimator},
            optimizer={"name": "sgd", "lr": 5.0},
            backend={"metrics_every": every},
            steps=6,
        )
        points[every] = train(run, tmp_path / str(every)).points
    for step in (3, 6):
        for name in ("change_norm", "step_norm", "update_cosine"):
            found, expected = (points[every][step][f"optim/{name}"] for every in (3, 1))
            assert found == pytest.approx(expected, rel=1e-5, abs=1e-6), (step, name)
        assert points[3][step]["policy/kl_step"] == points[1][step]["policy/kl_step"]
    assert "optim/step_norm" not in points[3][2]


def test_advantages_by_behaviour():
    """Behaviour 0 has 1 and -3, behaviour 2 has 2; the dropped rollout does not count."""
    experience = Experience(
        rows=None,
        actions=torch.tensor([[[0, 0, 2, 1]]]),
        log_probs=torch.zeros(1, 1, 4),
        advantages=torch.tensor([[[1.0, -3.0, 2.0, 7.0]]]),
        keep=torch.tensor([[[True, True, True, False]]]),
    )
    assert action_advantages(experience, 4) == [
        {"advantage/behaviour_0": -1.0, "advantage/behaviour_2": 2.0}
    ]
    assert action_advantages(experience, 9) == [{}]
