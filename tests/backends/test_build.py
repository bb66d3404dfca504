"""Building runs: what is refused and how, and what makes two runs the same."""

from __future__ import annotations

import dataclasses
import json
import re

import pytest
import safetensors.torch
import torch

from advsweep.backends import BACKENDS
from advsweep.backends.build import NODES, BuildCache, build_run
from advsweep.backends.checkpoints import Checkpoints
from advsweep.backends.models import TinyModel
from advsweep.backends.tiny import pretraining
from advsweep.backends.tiny.weights import last_layers
from advsweep.errors import ConfigError
from advsweep.tasks.base import SymbolTask
from advsweep.tasks.countdown import Countdown


@pytest.fixture
def config(small_config):
    return small_config("fake")


def test_plain_round_trips_to_the_same_run(config):
    run = build_run({**config, "estimator": {"name": "grpo_n", "base": {"name": "rloo"}}})
    plain = run.plain()
    assert json.loads(json.dumps(plain)) == plain
    again = build_run(plain)
    assert again.identity == run.identity
    assert again.plain() == plain
    assert all(plain[key]["name"] for key in plain if isinstance(plain[key], dict))


def test_the_task_fills_in_options_of_the_model(small_config):
    config = small_config("tiny", model={"random_share": None, "left_to_right_share": None})
    shares = {"countdown": (0.1, 0.6), "routes": (0.05, 0.25)}
    runs = {task: build_run({**config, "task": task}) for task in shares}
    for task, run in runs.items():
        model = run.plain()["model"]
        assert (model["random_share"], model["left_to_right_share"]) == shares[task]
        assert build_run(run.plain()).identity == run.identity
    cache = BuildCache()
    planned = [build_run({**config, "task": t}, cache=cache) for t in (*shares, *shares)]
    assert [run.identity for run in planned[:2]] == [run.identity for run in runs.values()]
    assert planned[0].model is planned[2].model is not planned[1].model
    assert planned[1].model is planned[3].model
    wrong = {**config["model"], "random_share": 0.5}
    with pytest.raises(ConfigError, match=r"^model\.left_to_right_share: expected at most"):
        build_run({**config, "task": "countdown", "model": wrong})


def test_however_a_config_is_written_it_is_one_run(config):
    """By names or mappings, in any order, with integers or equal floats, and by replacement."""
    names = {key: config[key]["name"] for key in NODES}
    nodes = {key: {"name": name} for key, name in names.items()}
    wide = {"name": "clipped", "clip_high": "inf"}
    delta_1 = [{**config, "estimator": {"name": "asym_grpo", "delta": d}} for d in (1, 1.0)]
    wrapped = [{**config, "estimator": {"name": "grpo_n", **b}} for b in ({}, {"base": "grpo"})]
    alike = [
        ({**config, **names}, {**config, **nodes}),
        (config, dict(reversed(config.items()))),
        delta_1,
        wrapped,
        ({**config, "objective": wide}, build_run({**config, "objective": wide}).plain()),
    ]
    for first, second in alike:
        assert build_run(first).identity == build_run(second).identity
    run = dataclasses.replace(build_run(config), seed=7)
    assert run.identity == build_run({**config, "seed": 7}).identity


@pytest.mark.parametrize(
    "change",
    [
        {"estimator": {"name": "rloo"}},
        {"estimator": {"name": "grpo_n", "base": {"name": "grpo", "std": "sample"}}},
        {"estimator": {"name": "asym_grpo", "delta": 0.25}},
        {"objective": {"name": "clipped", "clip_high": 0.28}},
        {"task": {"name": "countdown", "levels": [1, 2]}},
        {"model": {"name": "tiny", "layers": 3}},
        {"optimizer": {"name": "adamw", "lr": 0.01}},
        {"optimizer": {"name": "adamw", "lr": 0.003, "match": "mass"}},
        {"generation": {"name": "sampling", "temperature": 0.9}},
        {"backend": {"name": "fake", "learning_rate": 0.25}},
        {"group_size": 7},
        {"prompts_per_step": 9},
        {"steps": 6},
    ],
    ids=json.dumps,
)
def test_what_can_change_a_result_changes_the_identity(config, change):
    run, other = build_run(config), build_run({**config, **change})
    assert run.identity != other.identity
    assert run.config_hash != other.config_hash


@pytest.mark.parametrize(
    "change",
    [
        {"evaluation": {"name": "standard", "n": 4, "k": [1], "every": 0, "seed": 9}},
        {"backend": {"name": "fake", "checkpoint_every": 1, "keep_last": 5, "keep_every": 2}},
        {"executor": {"name": "local", "jobs": 4}, "tracking": {"name": "none"}},
        {"resources": {}, "stopping": {}},
        {"estimator": "grpo"},
        {"estimator": {"name": "dapo"}},
        {"optimizer": {"name": "adamw", "lr": 0.003, "beta1": 0.9, "weight_decay": 0}},
        {"optimizer": {"name": "adamw", "lr": 0.003, "match": "none", "match_reference": "grpo"}},
        {"task": {"name": "countdown", "held_out_per_level": 3, "levels": [1, 0, 1]}},
    ],
    ids=json.dumps,
)
def test_what_cannot_change_a_result_stays_out_of_the_identity(config, change):
    assert build_run({**config, **change}).identity == build_run(config).identity


@pytest.mark.parametrize(("backend", "task"), [("bandit", "bandit"), ("tiny", "routes")])
def test_the_seed_of_a_run_draws_its_task(small_config, backend, task):
    config = small_config(backend)
    config = {**config, "task": {"name": task, "seed": "seed"}}
    runs = [build_run({**config, "seed": seed}) for seed in (0, 1)]
    assert [run.plain()["task"]["seed"] for run in runs] == ["seed", "seed"]
    assert [run.task.plain()["seed"] for run in runs] == [0, 1]
    # Seeds replicate the task: only their identities differ, and the base that goes with it.
    assert runs[0].config_hash == runs[1].config_hash
    assert runs[0].identity != runs[1].identity
    assert len({run.backend.base_key(run) for run in runs}) == 2
    assert build_run(runs[1].plain()).identity == runs[1].identity
    # A task that all seeds share is another configuration.
    shared = build_run({**config, "task": task, "seed": 0})
    assert shared.config_hash != runs[0].config_hash
    assert shared.backend.base_key(shared) == runs[0].backend.base_key(runs[0])
    cache = BuildCache()
    planned = [build_run({**config, "seed": seed}, cache=cache) for seed in (0, 1, 0)]
    assert planned[0].task is planned[2].task is not planned[1].task
    assert planned[0].planned_task is planned[1].planned_task
    assert [run.identity for run in planned[:2]] == [run.identity for run in runs]


@pytest.mark.parametrize("task_seed", [0, "seed"])
@pytest.mark.parametrize("match", ["none", "mass"])
def test_planned_runs_equal_those_that_share_nothing(small_config, task_seed, match):
    """Seeds of one setting are built once for all, and every other difference apart."""
    config = small_config("tiny", optimizer={"match": match})
    base = {**config, "task": {"name": "routes", "seed": task_seed}}
    changes = [{}, {"steps": 7}, {"group_size": 4}, {"estimator": "rloo"}, {"control": "aa"}]
    evaluated = {"evaluation": {**config["evaluation"], "n": 3, "k": [1]}}
    configs = [
        {**base, **change, "seed": seed} for change in (*changes, evaluated) for seed in (0, 1, 2)
    ]
    cache = BuildCache()
    for each in configs:
        planned, single = build_run(each, cache=cache), build_run(each)
        assert planned.plain() == single.plain()
        assert planned.identity == single.identity
        assert planned.config_hash == single.config_hash
        assert planned.learning_rate_scale == single.learning_rate_scale
        assert planned.task == single.task
        assert planned.model == single.model


def test_every_seed_of_a_wrong_setting_is_refused(small_config):
    config = {**small_config("tiny"), "estimator": "rloo", "group_size": 1}
    cache = BuildCache()
    for seed in (0, 1):
        with pytest.raises(ConfigError, match=r"^group_size: expected >= 2"):
            build_run({**config, "seed": seed}, cache=cache)


def test_a_task_of_the_runs_seed_needs_a_base_that_follows_it(small_config):
    """A program of its own draws no tasks, and a model from elsewhere knows one map."""
    seeded = {"name": "routes", "seed": "seed"}
    path = {"name": "hf", "path": "org/model"}
    config = {**small_config("trl", model=path), "task": seeded}
    with pytest.raises(ConfigError, match=r"^task\.seed: expected an integer with backend 'trl'"):
        build_run({**config, "seed": 1})
    with pytest.raises(ConfigError, match=r"^task\.seed: expected an integer or 'seed', got 'no'"):
        build_run({**config, "task": {"name": "routes", "seed": "no"}})


def test_raised_revisions_are_known_by_their_keys(config, monkeypatch):
    assert build_run(config).revisions == {}
    run = build_run({**config, "estimator": {"name": "grpo_n"}})
    for component in (run.objective, run.estimator.base):
        monkeypatch.setattr(type(component), "revision", 3)
    assert run.revisions == {"estimator.base": 3, "objective": 3}


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"estimator": "grop"}, "estimator: no estimator is called 'grop'; did you mean 'grpo'"),
        (
            {"estimator": {"name": "asym_grpo", "delta": 0}},
            "estimator.delta: expected > 0, got 0",
        ),
        (
            {"optimizer": "sgd", "backend": {"name": "tiny"}},
            "optimizer: backend 'tiny' trains with adamw, got 'sgd'",
        ),
        ({"group_size": 0}, "group_size: expected >= 1, got 0"),
        ({"seeds": 1}, "seeds: a run has no such key; write `seed=0,1,2`"),
        ({"zzz": 1}, "zzz: a run has no such key; there are 14: "),
        (
            {"evaluation": {"name": "standard", "n": 8, "k": [1, 16]}},
            "evaluation.k: expected every k of pass@k to be at most n=8, got 16",
        ),
        (
            {"estimator": {"name": "passk_loo", "k": 4}, "group_size": 6},
            "group_size: expected >= 4 and a multiple of 4, which estimator 'passk_loo'",
        ),
        (
            {"optimizer": {"name": "adamw", "match": "mass"}, "group_size": 1},
            "optimizer.match: estimator 'dr_grpo' gives advantages of 0 alone to groups of 1; ",
        ),
        (
            {"optimizer": {"name": "adamw", "match": "mass"}, "estimator": "rent"},
            "optimizer.match: estimator 'rent' does not weigh rewards",
        ),
        (
            {"estimator": "rloo", "group_size": 1},
            "group_size: expected >= 2, which estimator 'rloo' needs, got 1",
        ),
    ],
    ids=lambda value: json.dumps(value) if isinstance(value, dict) else "",
)
def test_refusals_name_the_key(config, change, message):
    with pytest.raises(ConfigError, match=re.escape(message)):
        build_run({**config, **change})


@pytest.mark.parametrize(
    ("key", "message"),
    [
        ("group_size", "group_size: expected an integer, got nothing"),
        ("backend", "backend: expected one of bandit, command, fake, tiny, trl, got nothing"),
    ],
)
def test_missing_keys_are_named(config, key, message):
    del config[key]
    with pytest.raises(ConfigError, match=message):
        build_run(config)


def test_the_backend_has_the_last_word(config, monkeypatch):
    def check(backend, run):
        if run.group_size > 3:
            raise ConfigError(f"group_size: expected <= 3, got {run.group_size}")

    monkeypatch.setattr(BACKENDS.get("fake"), "check", check)
    assert build_run({**config, "group_size": 3}).group_size == 3
    with pytest.raises(ConfigError, match="group_size: expected <= 3, got 6"):
        build_run(config)


@pytest.mark.parametrize(
    ("estimator", "reward_range", "message"),
    [
        (
            "nsr",
            (0, 1),
            "'nsr' is defined for rewards of 0 and 1 only, and those of task 'countdown' go",
        ),
        (
            "power_alpha",
            (-1, 1),
            "'power_alpha' .* rewards in .0, 1., as .*'countdown' go from -1 to 1",
        ),
        ("power_alpha", (0, 1), None),
        ("grpo", (-1, 3), None),
    ],
)
def test_graded_rewards_need_an_estimator_that_can_use_them(
    estimator, reward_range, message, config, monkeypatch
):
    monkeypatch.setattr(Countdown, "is_binary", False)
    monkeypatch.setattr(Countdown, "reward_range", reward_range)
    if message is None:
        assert build_run({**config, "estimator": {"name": estimator}}).task.reward_range[1] > 0
    else:
        with pytest.raises(ConfigError, match=message):
            build_run({**config, "estimator": {"name": estimator}})


@pytest.mark.parametrize(
    ("reward", "weights", "message"),
    [
        ("accuracy", None, "estimator: 'gdpo' weighs the parts of a reward apart, and that of"),
        ({"accuracy": 1, "format": 1}, [1, 2, 3], "estimator.weights: expected 2 numbers, one"),
    ],
)
def test_parts_of_the_reward_are_as_many_as_their_weights(config, reward, weights, message):
    task = {"name": "countdown", "reward": reward}
    estimator = {"name": "gdpo", "weights": weights}
    config = {**config, "task": task, "estimator": estimator, "backend": {"name": "tiny"}}
    with pytest.raises(ConfigError, match=message):
        build_run(config)


def test_without_its_data_a_run_is_planned_under_an_identity_that_is_not_final(config, tmp_path):
    file = tmp_path / "later.jsonl"
    task = {"name": "dataset", "data": str(file), "held_out": 2, "verifier": "numeric"}
    config = {**config, "task": task}
    with pytest.raises(ConfigError, match=r"^task\.data: .* there is no"):
        build_run(config)
    run = build_run(config, fetch=False)
    assert run.absent == (f"task.data={file}",)
    other = build_run({**config, "task": {**task, "held_out": 3}}, fetch=False)
    for identity in (run.identity, run.config_hash, other.identity):
        assert re.fullmatch(r"\?[0-9a-f]{64}", identity)
    assert run.identity != other.identity
    rows = ({"question": f"{i} + {i}?", "answer": str(2 * i)} for i in range(9))
    file.write_text("".join(json.dumps(row) + "\n" for row in rows), encoding="utf-8")
    run = build_run(config, fetch=False)
    assert run.absent == ()
    assert run.identity == build_run(config).identity
    assert re.fullmatch("[0-9a-f]{64}", run.identity)


RENEWED = {"name": "clipped", "kl_coef": 0.1, "renew_every": 2}
OURS = ["tiny", "bandit"]


def checkpoint(run, directory, step):
    """The tensors of a checkpoint by file."""
    files = Checkpoints(directory, run.identity).load(step).files
    return {n: safetensors.torch.load(files[n]) for n in files if n.endswith(".safetensors")}


@pytest.mark.parametrize("backend", OURS)
def test_the_penalty_refers_to_the_policy_of_the_last_renewal(small_run, train, tmp_path, backend):
    one_update = {"minibatches": 1, "checkpoint_every": 1, "keep_last": 9}
    optimizer = {"name": "adamw", "lr": 0.01}
    run = small_run(
        backend,
        objective=RENEWED,
        optimizer=optimizer,
        backend=one_update,
        estimator="nsr",
    )
    points = train(run, tmp_path).points
    # A step's only update is made where its rollouts were drawn: at the reference itself in the
    # first step, and in those after the renewals at steps 2 and 4.
    kl = [points[step]["loss/kl"] for step in range(1, 6)]
    assert [kl[0], kl[2], kl[4]] == pytest.approx([0, 0, 0], abs=1e-9)
    assert min(kl[1], kl[3]) > 1e-8


@pytest.mark.parametrize("backend", OURS)
def test_the_optimizer_counts_from_its_last_reset(small_run, train, tmp_path, backend):
    settings = {"minibatches": 1, "checkpoint_every": 1, "keep_last": 9}
    optimizer = {"name": "adamw", "lr": 0.003, "reset_every": 2}
    run = small_run(backend, optimizer=optimizer, backend=settings, estimator="reinforce")
    train(run, tmp_path)

    def updates(step):
        tensors = checkpoint(run, tmp_path, step)
        named = {k: v for file in tensors.values() for k, v in file.items()}
        return {float(v) for k, v in named.items() if re.search(r"(^updates|(^|/)step)$", k)}

    assert [updates(step) for step in (1, 3, 5)] == [{1.0}, {1.0}, {1.0}]
    # Nothing is left after the reset itself.
    assert updates(4) <= {0.0}


@pytest.mark.slow
@pytest.mark.parametrize("tied", [True, False])
def test_the_last_layers_go_back_to_the_base(small_run, train, tmp_path, tied):
    settings = {"reset_layers": 1, "reset_layers_every": 2, "checkpoint_every": 1, "keep_last": 9}
    model = {"layers": 2, "tied_embeddings": tied}
    run = small_run("tiny", backend=settings, model=model, estimator="reinforce")
    points = train(run, tmp_path).points
    assert isinstance(run.model, TinyModel)
    assert isinstance(run.task, SymbolTask)
    base = pretraining.base_weights(run.model, run.task)
    names = last_layers(run.model, 1)
    assert ("lm_head.weight" in names) is not tied
    assert any(".1." in name for name in names)
    assert not any(".0." in name for name in names)
    for step in range(1, 6):
        weights = checkpoint(run, tmp_path, step)["model.safetensors"]
        same = {name for name, weight in weights.items() if torch.equal(weight, base[name])}
        assert same == (set(names) if step in (2, 4) else set())
    # The change of a step is the training's own; the reset shows in the distance from the base.
    change = points[2]["optim/change_norm"]
    assert points[3]["optim/change_norm"] < change
    assert points[3]["optim/step_norm"] < change


def test_without_resets_a_run_is_what_it_was(small_run):
    plain = small_run("tiny")
    absent = {
        "optimizer": {"name": "adamw", "lr": 0.003, "reset_every": 0},
        "objective": {"name": "clipped", "renew_every": 0},
        "backend": {"reset_layers": 0, "reset_layers_every": 0},
    }
    assert small_run("tiny", **absent).identity == plain.identity
    assert not {"reset_every", "reset_layers"} & set(str(plain._material).replace("'", " ").split())


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"backend": {"reset_layers": 1}}, "backend.reset_layers: expected both reset_layers and"),
        (
            {"backend": {"reset_layers": 2, "reset_layers_every": 5}},
            "backend.reset_layers: expected at most model.layers = 1, got 2",
        ),
        ({"objective": {"name": "clipped", "renew_every": 5}}, "objective.renew_every: expected 0"),
        (
            {"objective": RENEWED, "backend": "fake"},
            "objective.renew_every: expected 0, got ",
        ),
        (
            {"optimizer": {"name": "adamw", "reset_every": 5}, "backend": "fake"},
            "optimizer.reset_every: expected 0, got ",
        ),
        (
            {"optimizer": {"name": "sgd", "reset_every": 5}},
            "optimizer.reset_every: expected 0 with momentum=0",
        ),
    ],
)
def test_resets_that_cannot_be_are_refused(small_run, changes, message):
    with pytest.raises(ConfigError, match=re.escape(message)):
        small_run("tiny", **changes)


def test_a_correction_needs_a_sampler_apart(small_run):
    corrected = {"name": "clipped", "correction": "sequence_mask"}
    expected = "objective.correction: expected none; others need .*'bandit' cannot do; .*tiny, trl"
    with pytest.raises(ConfigError, match=expected):
        small_run("bandit", objective=corrected)
    assert small_run("tiny", objective=corrected).objective.needs_sampler
