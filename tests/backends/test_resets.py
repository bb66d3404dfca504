"""Resets at intervals: the penalty's reference, the optimizer's moments, the last layers."""

import re

import pytest
import safetensors.torch
import torch

from advsweep.backends.checkpoints import Checkpoints
from advsweep.backends.models import TinyModel
from advsweep.backends.tiny import pretraining
from advsweep.backends.tiny.weights import last_layers
from advsweep.errors import ConfigError
from advsweep.tasks.base import SymbolTask

RENEWED = {"name": "clipped", "kl_coef": 0.1, "renew_every": 2}
BACKENDS = ["tiny", "bandit"]


def checkpoint(run, directory, step):
    """The tensors of a checkpoint by file."""
    files = Checkpoints(directory, run.identity).load(step).files
    return {n: safetensors.torch.load(files[n]) for n in files if n.endswith(".safetensors")}


@pytest.mark.parametrize("backend", BACKENDS)
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


@pytest.mark.parametrize("backend", BACKENDS)
def test_the_optimizer_counts_from_its_last_reset(small_run, train, tmp_path, backend):
    settings = {"minibatches": 1, "checkpoint_every": 1, "keep_last": 9}
    optimizer = {"name": "adamw", "lr": 0.003, "reset_every": 2}
    run = small_run(backend, optimizer=optimizer, backend=settings, estimator="reinforce")
    train(run, tmp_path)

    def updates(step):
        tensors = checkpoint(run, tmp_path, step)
        named = {k: v for file in tensors.values() for k, v in file.items()}
        return {float(v) for k, v in named.items() if re.search(r"(^updates|/step)$", k)}

    assert [updates(step) for step in (1, 3, 5)] == [{1.0}, {1.0}, {1.0}]
    # Nothing is left after the reset itself.
    assert updates(4) <= {0.0}


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
