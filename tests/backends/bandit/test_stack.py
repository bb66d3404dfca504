"""Runs that are trained together have the numbers that they have alone."""

from contextlib import contextmanager

import pytest
import torch

from advsweep.backends.bandit import stack as bandit_stack
from advsweep.backends.bandit.stack import BanditStack
from advsweep.backends.bandit.tables import Policy, exact_metrics
from advsweep.backends.bandit.update import Experience, action_advantages
from advsweep.backends.base import StackMember
from advsweep.backends.build import build_run
from advsweep.backends.checkpoints import Checkpoints
from advsweep.errors import AdvsweepError, BatchError, TrainingError

DIFFERENT = [
    {"seed": 1},
    {"seed": 2},
    {"seed": 1, "estimator": {"name": "avspo"}},
    {"seed": 3, "estimator": {"name": "asym_grpo", "delta": 0.5}, "optimizer": {"lr": 3.0}},
    {"seed": 1, "estimator": {"name": "reinforce"}},
    {"seed": 2, "estimator": {"name": "grpo"}, "generation": {"temperature": 0.7}},
    {"seed": 4, "estimator": {"name": "fade"}, "task": {"levels": [5, 6]}},
    {"seed": 5, "estimator": {"name": "asym_grpo", "delta": 0.5}, "task": {"spread": 2.0}},
    {"seed": 2, "estimator": {"name": "fade"}},
    {"seed": 3, "estimator": {"name": "filter_drop"}, "task": {"levels": [2, 3]}},
    {"seed": 4, "estimator": {"name": "entropy_shaped", "base": "rloo"}},
    {"seed": 5, "estimator": {"name": "entropy_shaped", "base": "rloo"}},
]
"""In what runs of a stack may differ."""

SETTINGS = {
    "plain descent": {},
    "every prompt": {"prompts_per_step": 16},
    "every prompt, in two epochs": {
        "prompts_per_step": 16,
        "objective": {"kl_coef": 0.3},
        "backend": {"inner_epochs": 2},
    },
    "some prompts": {"prompts_per_step": 5},
    "prompts twice": {"prompts_per_step": 32},
    "momentum": {"optimizer": {"momentum": 0.9}},
    "adamw": {"optimizer": {"name": "adamw", "lr": 0.1, "weight_decay": 0.1}},
    "clipped gradients": {"optimizer": {"max_grad_norm": 0.02}},
    "shared map": {"model": {"rank": 4}},
    "KL and entropy": {"objective": {"kl_coef": 0.3, "entropy_coef": 0.2}},
    "minibatches": {"backend": {"minibatches": 3, "inner_epochs": 2}},
    "references": {"rollout": {"name": "reference", "update_every": 2}},
    "noise": {"control": {"name": "noise", "false_positives": 0.4}},
    "placebo": {"control": {"name": "placebo"}},
}
"""What they have in common."""


@pytest.fixture
def make(small_config):
    """Builds a run with some settings changed."""

    def make(*changes):
        config = small_config("bandit")
        config["task"] |= {"rates": [0.4, 0.2, 0.1, 0.1, 0.1, 0.3, 0.6], "behaviours": 11}
        config["task"] |= {"correct": 3}
        config["optimizer"] = {"name": "sgd", "lr": 20.0}
        config["backend"] |= {"exact_every": 2, "entropy_change": True}
        for change in changes:
            for key, value in change.items():
                known = config.get(key)
                merged = (
                    isinstance(known, dict) and value.get("name", known["name"]) == known["name"]
                )
                config[key] = {**known, **value} if merged else value
        return build_run(config)

    return make


class Guard:
    """Keeps what goes wrong with a run."""

    def __init__(self):
        self.error = None

    @contextmanager
    def __call__(self):
        try:
            yield
        except (AdvsweepError, KeyError) as error:
            self.error = error


def train_together(runs, folder, recorder, **settings):
    """Trains runs as one stack; recorders get the settings of their run, by its index."""
    recorders = [
        recorder(run.task, **{n: by_run[i] for n, by_run in settings.items() if i in by_run})
        for i, run in enumerate(runs)
    ]
    guards = [Guard() for _ in runs]
    members = [
        StackMember(run, folder / str(i), reporter, guard)
        for i, (run, reporter, guard) in enumerate(zip(runs, recorders, guards, strict=True))
    ]
    assert len({run.backend.stack_key(run) for run in runs}) == 1
    runs[0].backend.train_together(members)
    return recorders, guards


def checkpoint(run, directory):
    return dict(Checkpoints(directory, run.identity).load(run.steps).files)


@pytest.mark.parametrize("setting", SETTINGS)
def test_each_run_is_as_it_is_alone(make, train, recorder, tmp_path, setting):
    runs = [make(different, SETTINGS[setting]) for different in DIFFERENT]
    together, _ = train_together(runs, tmp_path / "together", recorder)
    moved = 0
    for i, (run, reporter) in enumerate(zip(runs, together, strict=True)):
        alone = train(run, tmp_path / "alone" / str(i))
        assert reporter.lasting == alone.lasting
        assert reporter.evaluations.keys() == alone.evaluations.keys()
        for step, completions in alone.evaluations.items():
            assert reporter.evaluations[step].texts == completions.texts
        files = [checkpoint(run, tmp_path / which / str(i)) for which in ("alone", "together")]
        assert files[0] == files[1]
        moved += alone.points[5].get("optim/grad_norm", 0.0) > 0
    assert moved > len(runs) / 2


@pytest.mark.parametrize(
    "setting", ["every prompt", "momentum", "adamw", "references", "minibatches"]
)
def test_a_run_that_stops_and_goes_on_is_as_if_it_had_not(make, train, recorder, tmp_path, setting):
    """It leaves others that go on, and comes back beside one that begins."""
    stateful = "aapo" if setting == "references" else "fade"
    # Logits may rise by hundreds at once.
    rate = {"lr": 9000.0 if setting == "every prompt" else 20.0}
    changes = [
        {"seed": 1},
        {"seed": 2, "estimator": {"name": stateful}, "optimizer": rate},
        {"seed": 3},
    ]
    runs = [make(SETTINGS[setting], change) for change in changes]
    alone = [train(run, tmp_path / "alone" / str(i)) for i, run in enumerate(runs)]
    first, _ = train_together(runs, tmp_path / "first", recorder, stop_after={1: 3})
    assert [max(reporter.points) for reporter in first] == [5, 3, 5]
    for i in (0, 2):
        assert first[i].lasting == alone[i].lasting
        files = [checkpoint(runs[i], tmp_path / which / str(i)) for which in ("alone", "first")]
        assert files[0] == files[1]
    (tmp_path / "second").mkdir()
    (tmp_path / "first" / "1").rename(tmp_path / "second" / "0")
    second, _ = train_together([runs[1], runs[0]], tmp_path / "second", recorder)
    assert second[0].resumptions == [3]
    assert first[1].lasting | second[0].lasting == alone[1].lasting
    files = [
        checkpoint(runs[1], tmp_path / "alone" / "1"),
        checkpoint(runs[1], tmp_path / "second" / "0"),
    ]
    assert files[0] == files[1]
    assert second[1].lasting == alone[0].lasting


def test_runs_that_stop_or_fail_leave_the_others_alone(make, train, recorder, tmp_path):
    # Where it goes in one epoch, the divergence from the base model is infinite in the next.
    common = {"objective": {"kl_coef": 0.3, "kl_estimator": "k2"}, "backend": {"inner_epochs": 2}}
    changes = [{"seed": 1}, {"seed": 7, "optimizer": {"lr": 1e38}}, {"seed": 2}, {"seed": 3}]
    runs = [make(common, change) for change in changes]
    together, guards = train_together(runs, tmp_path / "first", recorder, stop_after={2: 3})
    assert isinstance(guards[1].error, TrainingError)
    assert "expected a finite" in str(guards[1].error)
    assert guards[0].error is guards[2].error is guards[3].error is None
    assert max(together[2].points) == 3
    alone = [train(run, tmp_path / "alone" / str(i)) for i, run in enumerate(runs) if i != 1]
    assert together[0].lasting == alone[0].lasting
    assert together[3].lasting == alone[2].lasting


def test_an_estimator_that_refuses_its_groups_ends_its_own_run(
    make, train, recorder, tmp_path, monkeypatch
):
    runs = [make({"seed": seed, "estimator": {"name": "dr_grpo"}}) for seed in (1, 2, 3)]
    alone = train(runs[2], tmp_path / "alone")
    weigh, calls = bandit_stack.compute_advantages, []

    def refuse(estimator, drawn, collected):
        """Refuses the third step of the second run."""
        calls.append(drawn.step)
        if drawn.step == 3 and calls.count(3) == 2:
            raise BatchError("refused")
        return weigh(estimator, drawn, collected)

    monkeypatch.setattr(bandit_stack, "compute_advantages", refuse)
    together, guards = train_together(runs, tmp_path / "together", recorder)
    assert str(guards[1].error) == "refused"
    assert max(together[1].points) == 2
    assert together[2].lasting == alone.lasting


def test_what_may_and_may_not_differ_in_a_stack(make):
    key = make().backend.stack_key(make())
    assert key is not None
    for different in DIFFERENT:
        run = make(different)
        assert run.backend.stack_key(run) == key
    others = [
        *SETTINGS.values(),
        {"steps": 6},
        {"group_size": 4},
        {"task": {"behaviours": 12}},
        {"backend": {"exact_every": 1}},
        {"optimizer": {"warmup_steps": 3}},
    ]
    keys = {make(other).backend.stack_key(make(other)) for other in others if other}
    # The first setting changes nothing, and the two controls share a key.
    assert len(keys) == len(others) - 2
    assert key not in keys
    # The number of groups that these train on is their own in every step.
    for name in ("filter_drop", "dynamic_sampling"):
        run = make({"rollout": {"name": name}})
        assert run.backend.stack_key(run) is None


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
    start, last = stack.bandits.weights["parameters"].clone().double(), None
    for step in range(1, 4):
        before = stack.bandits.weights["parameters"].clone().double()
        policy = stack.bandits.policy()
        [metrics], experience = stack._train(step)
        assert experience is not None
        assert not isinstance(metrics, Exception)
        change = stack.bandits.weights["parameters"].double() - before
        after = stack.bandits.policy()
        divergence = (policy.log.exp() * (policy.log - after.log)).double().sum(-1)
        assert metrics["optim/step_norm"] == pytest.approx(change.norm().item(), rel=1e-4)
        total = (stack.bandits.weights["parameters"].double() - start).norm().item()
        assert metrics["optim/change_norm"] == pytest.approx(total, rel=1e-4)
        rows = experience.rows
        drawn = divergence if rows is None else divergence.gather(1, rows)
        assert metrics["policy/kl_step"] == pytest.approx(drawn.mean().item(), rel=1e-2, abs=1e-6)
        assert metrics["policy/kl_step"] > 0
        if last is not None:
            cosine = torch.cosine_similarity(change.flatten(), last.flatten(), dim=0).item()
            assert metrics["optim/update_cosine"] == pytest.approx(cosine, abs=1e-4)
        last = change


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


def test_exact_quantities_are_the_same_to_the_bit_in_every_stack():
    # Three prompts alone do not fill a vector of a processor, those of all runs do.
    logits = torch.randn((400, 3, 12), generator=torch.Generator().manual_seed(0))
    correct = torch.arange(12) < 1

    def exact(of_runs):
        policy = Policy(torch.log_softmax(of_runs, dim=-1))
        return exact_metrics(policy, policy, correct.expand(of_runs.shape), ks=[1, 5, 8])

    assert exact(logits) == [exact(of_run[None])[0] for of_run in logits]
