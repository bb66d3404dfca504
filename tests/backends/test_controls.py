"""Controls on every backend that has them: what changes in a training, and what does not."""

import numpy as np
import pytest

from advsweep.backends.build import build_run
from advsweep.errors import ConfigError

CONTROLS = ["aa", "placebo", "noise"]


@pytest.fixture(params=["tiny", "bandit", "trl"])
def backend(request):
    return str(request.param)


def test_a_repetition_has_other_rollouts_of_the_same_problems(
    backend, small_run, train, tmp_path, monkeypatch
):
    drawn = {"": [], "aa": []}
    recorders = {}
    for control, ids in drawn.items():
        run = small_run(backend, control=control or None)
        draw = type(run.task).draw

        def spying(self, count, rng, ids=ids, draw=draw):
            problems = draw(self, count, rng)
            ids += [problem.id for problem in problems]
            return problems

        with monkeypatch.context() as patched:
            patched.setattr(type(run.task), "draw", spying)
            recorders[control] = train(run, tmp_path / f"run-{control}")
    # The bandit draws rows of its table.
    assert drawn[""] == drawn["aa"]
    assert bool(drawn[""]) is (backend != "bandit")
    own, other = recorders[""], recorders["aa"]
    assert own.evaluations[0].texts == other.evaluations[0].texts
    assert own.points[1]["entropy/token_sampled"] != other.points[1]["entropy/token_sampled"]
    assert own.points[5]["optim/change_norm"] != other.points[5]["optim/change_norm"]


def test_a_repetition_has_the_base_of_its_run(backend, small_run):
    runs = [small_run(backend, control=control) for control in (None, *CONTROLS)]
    assert len({run.backend.base_key(run) for run in runs}) == 1
    assert len({run.identity for run in runs}) == len({run.config_hash for run in runs}) == 4


def test_runs_without_a_control_keep_their_identity(backend, small_config):
    config = small_config(backend)
    run = build_run(config)
    assert "control" not in run.plain()
    for none in (None, "none", {"name": "none"}):
        assert build_run({**config, "control": none}).identity == run.identity
    noisy = build_run({**config, "control": "noise"})
    assert build_run(noisy.plain()).identity == noisy.identity
    assert list(noisy.plain())[-1] == "seed"  # Stores expect it at the end.


@pytest.mark.parametrize("control", [None, "placebo"])
def test_a_placebo_learns_nothing(control, small_run, train, tmp_path):
    run = small_run(
        "bandit",
        control=control,
        task={"rates": [0.3, 0.2], "prompts_per_level": 16},
        model={"name": "table"},
        optimizer={"name": "sgd", "lr": 20.0, "max_grad_norm": 0},
        backend={"exact_every": 1, "exact_k": [1]},
        prompts_per_step=32,
        group_size=16,
        steps=60,
    )
    points = train(run, tmp_path).points
    rewards = np.mean([values["reward/mean"] for values in points.values()])
    gained = points[60]["exact/pass@1"] - 0.25
    if control is None:
        assert gained > 0.3
        assert "control/rate" not in points[1]
    else:
        # 30,720 verdicts at .3 and .2: a standard error of .0025.
        assert rewards == pytest.approx(0.25, abs=0.01)
        assert points[1]["control/rate"] == pytest.approx(0.25)
        assert abs(gained) < 0.05


def test_a_verifier_that_always_errs_turns_the_rewards_over(small_run, train, tmp_path):
    inverted = {"name": "noise", "false_positives": 1.0, "false_negatives": 1.0}
    for name in ("tiny", "bandit"):
        plain = train(small_run(name, steps=1), tmp_path / name).points[1]
        turned = train(small_run(name, steps=1, control=inverted), tmp_path / f"{name}-2").points[1]
        assert turned["reward/mean"] == pytest.approx(1 - plain["reward/mean"])
        assert turned["entropy/token_sampled"] == plain["entropy/token_sampled"]


@pytest.mark.parametrize(
    ("backend", "changes", "message"),
    [
        (
            "fake",
            {"control": "aa"},
            "control: expected none, got 'aa', which backend 'fake' cannot do; backends that can: ",
        ),
        (
            "bandit",
            {"control": "noise", "task": {"name": "toy"}},
            "control: 'noise' changes a verifier's verdicts, of which the rewards of task 'toy'",
        ),
        (
            "tiny",
            {"control": "placebo", "estimator": "rent"},
            "which estimator 'rent' does not read",
        ),
        ("tiny", {"control": "plcebo"}, "did you mean 'placebo'"),
    ],
)
def test_controls_that_would_do_nothing_are_refused(backend, changes, message, small_config):
    config = small_config(backend)
    with pytest.raises(ConfigError) as refused:
        build_run({**config, **changes})
    assert message in str(refused.value)
    assert "\n" not in str(refused.value)
