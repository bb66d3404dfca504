"""Every rollout policy on every backend."""

import math

import numpy as np
import pytest

from advsweep.backends import BACKENDS
from advsweep.backends.base import Can
from advsweep.backends.build import build_run
from advsweep.errors import ConfigError, TrainingError
from advsweep.rollouts import ROLLOUTS
from advsweep.tasks.countdown import Countdown

# The fake backend's easiest levels are seldom all wrong or all right, so that steps differ.
PLAIN_GRPO = {"estimator": {"name": "grpo"}, "rollout": {"name": "plain"}}


@pytest.fixture(params=[n for n in BACKENDS.names() if not BACKENDS.get(n).external])
def backend(request):
    return str(request.param)


@pytest.fixture(params=ROLLOUTS.names())
def rollout(request):
    return str(request.param)


@pytest.fixture
def unmixed(backend, monkeypatch):
    """Changes to a small run that leave it without mixed groups: those of one have no spread."""
    if backend != "trl":
        return {"group_size": 1}
    # TRL makes no groups of one; here every answer is wrong.
    monkeypatch.setattr(Countdown, "score", lambda self, problems, texts: np.zeros(len(texts)))
    return {"group_size": 2}


def refused(backend, rollout, small_config):
    """Whether a backend does not support a policy; it says so then."""
    policy, supported = ROLLOUTS.get(rollout), BACKENDS.get(backend).supports
    if policy.draws_values:
        # Those that support it train it on a task with turns: `tiny/test_episodes.py`.
        with pytest.raises(
            ConfigError, match=r"measures values of turns, and task .* has no turns"
        ):
            build_run(small_config(backend, rollout={"name": rollout}))
        return True
    if policy.draws_again and Can.RETRIES not in supported:
        what = "trains on more groups"
    elif policy.draws_greedy and Can.GREEDY not in supported:
        what = "draws greedy rollouts"
    elif policy.selects and Can.SELECTION not in supported:
        what = "trains on some rollouts"
    else:
        return False
    expected = f"rollout: '{rollout}' {what}, which backend '{backend}' cannot do"
    with pytest.raises(ConfigError, match=expected):
        build_run(small_config(backend, rollout={"name": rollout}))
    return True


def without(names, points):
    return {
        step: {name: v for name, v in values.items() if name not in names}
        for step, values in points.items()
    }


def test_it_trains_to_finite_numbers(backend, rollout, small_config, small_run, train, tmp_path):
    if refused(backend, rollout, small_config):
        return
    points = train(small_run(backend, rollout={"name": rollout}), tmp_path).points
    assert all(math.isfinite(v) for values in points.values() for v in values.values())
    for values in points.values():
        again = ROLLOUTS.get(rollout).draws_again
        # A prompt whose first turn collapsed may have a mixed second one, and of a mixed group the
        # rollouts that are trained on may be alike.
        trained_on = again or ROLLOUTS.get(rollout).selects
        mixed = values["collapse/acr_after" if trained_on else "collapse/acr"] < 1
        assert (values.get("optim/grad_norm", 0) > 0) == mixed
        trained = values["cost/utilisation"] * values["cost/rollouts"]
        assert trained <= (2 if again else 1) + 1e-12


def test_renewing_the_reference_shows_from_the_next_step_on(backend, small_run, train, tmp_path):
    def lasting(update_every):
        run = small_run(
            backend,
            estimator={"name": "aapo"},
            rollout={"name": "reference", "update_every": update_every},
            # Large steps, so that a renewed reference answers otherwise.
            optimizer={"name": "adamw", "lr": 0.03},
            backend={"learning_rate": 20.0} if backend == "fake" else {},
        )
        return train(run, tmp_path / str(update_every)).lasting

    never, renewed = lasting(0), lasting(2)
    assert [never[step] == renewed[step] for step in (1, 2)] == [True, True]
    assert never[3] != renewed[3]
    assert never[3]["reward/mean"] == renewed[3]["reward/mean"]


def test_references_leave_the_rollouts_alone(backend, small_run, train, tmp_path):
    """Without a margin AAPO is GRPO, at twice the cost."""
    aapo = {
        "estimator": {"name": "aapo", "delta_low": 0, "delta_high": 0},
        "rollout": {"name": "reference"},
    }
    costs = {"cost/rollouts", "cost/utilisation"}
    with_references = train(small_run(backend, **aapo), tmp_path / "aapo").lasting
    plain = train(small_run(backend, **PLAIN_GRPO), tmp_path / "grpo").lasting
    assert without(costs, with_references) == without(costs, plain)
    assert with_references[1]["cost/rollouts"] == 2
    assert with_references[1]["cost/utilisation"] == 0.5


def test_greedy_rollouts_leave_the_others_alone(backend, small_config, small_run, train, tmp_path):
    """With the greedy rewards unread they cost one rollout per group, and nothing else."""
    if refused(backend, "greedy", small_config):
        return
    costs = {"cost/rollouts", "cost/utilisation"}
    changes = {**PLAIN_GRPO, "rollout": {"name": "greedy"}}
    run = small_run(backend, **changes)
    greedy = train(run, tmp_path / "greedy").lasting
    plain = train(small_run(backend, **PLAIN_GRPO), tmp_path / "plain").lasting
    assert without(costs, greedy) == without(costs, plain)
    assert greedy[1]["cost/rollouts"] == pytest.approx(1 + 1 / run.group_size)


def test_dynamic_sampling_costs_what_it_discards(backend, small_run, train, tmp_path):
    run = small_run(backend, rollout={"name": "dynamic_sampling", "max_draws": 100})
    points = train(run, tmp_path).points
    for values in points.values():
        assert values["collapse/acr_after"] == 0
        assert values["cost/utilisation"] == pytest.approx(1 / values["cost/rollouts"])
        assert values["cost/rollouts"] == round(values["cost/rollouts"])
        # At most one draw too many for the mixed groups that there were.
        assert (1 - values["collapse/acr"]) * values["cost/rollouts"] >= 1 - 1e-12
    assert any(values["cost/rollouts"] > 1 for values in points.values())


def test_a_step_without_a_mixed_group_is_passed_over(backend, unmixed, small_run, train, tmp_path):
    run = small_run(backend, rollout={"name": "filter_drop"}, **unmixed)
    reporter = train(run, tmp_path)
    assert sorted(reporter.points) == [1, 2, 3, 4, 5]
    for values in reporter.points.values():
        assert values["cost/utilisation"] == 0
        assert values["collapse/acr"] == 1
        assert not any(name.startswith(("loss/", "advantage/", "mass/")) for name in values)
    assert reporter.evaluations[0].texts == reporter.evaluations[5].texts


def test_dynamic_sampling_ends_a_run_that_cannot_go_on(
    backend, unmixed, small_run, train, tmp_path
):
    run = small_run(backend, rollout={"name": "dynamic_sampling", "max_draws": 3}, **unmixed)
    with pytest.raises(TrainingError, match=r"step 1: expected 8 groups .* got 0 of 24 drawn"):
        train(run, tmp_path)


def test_a_backend_without_a_reference_is_refused(backend, small_config, monkeypatch):
    config = small_config(backend, rollout={"name": "reference"})
    monkeypatch.setattr(BACKENDS.get(backend), "supports", Can.NOTHING)
    with pytest.raises(ConfigError, match=f"rollout: 'reference' draws .* backend '{backend}'"):
        build_run(config)


def test_a_policy_that_gives_what_is_missing_is_named(backend, small_config):
    expected = "estimator: 'aapo' needs ref_rewards, .* does not give; rollout=reference does"
    with pytest.raises(ConfigError, match=expected):
        build_run(small_config(backend, estimator={"name": "aapo"}))


@pytest.mark.parametrize(
    ("name", "giver"),
    [("gigpo", r"turn_state\) gives turn_states"), ("turn_grpo", r"so_far\) gives turn_rewards")],
)
def test_what_gives_turns_is_named(small_config, name, giver):
    with pytest.raises(ConfigError, match=f"estimator: '{name}' needs .*{giver}"):
        build_run(small_config("tiny", estimator={"name": name}))


@pytest.mark.parametrize("retry_if", ["all", "any"])
@pytest.mark.parametrize("backend", ["tiny", "bandit"])
def test_failed_prompts_are_tried_again(backend, small_run, train, tmp_path, retry_if):
    """The metrics of turns fit those of the whole step."""
    rollout = {"name": "retry", "turns": 3, "retry_if": retry_if}
    points = train(small_run(backend, rollout=rollout), tmp_path / "retry").points
    reached = [
        [values[f"retry/reached/turn_{turn}"] for turn in (1, 2, 3)] for values in points.values()
    ]
    for values, shares in zip(points.values(), reached, strict=True):
        assert shares[0] == 1 >= shares[1] >= shares[2]
        assert values["cost/rollouts"] == pytest.approx(sum(shares))
        assert values["cost/utilisation"] == 1
        for side in ("success", "failure"):
            turns = sum(values[f"mass/{side}/turn_{turn}"] for turn in (1, 2, 3))
            assert turns == pytest.approx(values[f"mass/{side}"] * sum(shares))
        # Counts of groups by solved rollouts, all over the first turn.
        assert sum(values[f"solved/{k}"] for k in range(7)) == pytest.approx(1)
        first = values["collapse/all_wrong"] if retry_if == "all" else None
        assert first is None or shares[1] == pytest.approx(first)
        if retry_if == "any":
            assert shares[1] == pytest.approx(1 - values["solved/6"])
    assert any(shares[2] > 0 for shares in reached)
    # The first step's first turn is that of plain rollouts.
    plain = train(small_run(backend), tmp_path / "plain").points[1]
    for name in ("reward/mean", "collapse/acr", "entropy/token", "prompts/fully_unsolved"):
        assert points[1][name] == plain[name]
    assert points[1]["mass/success/turn_1"] == pytest.approx(plain["mass/success"])
