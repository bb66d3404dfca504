"""The base model: what its recipe makes, and the cache that keeps it."""

import dataclasses
import multiprocessing
import os
import threading
import time
from pathlib import Path

import numpy as np
import pytest
import torch

from advsweep.backends.models import PretrainingSeed, TinyModel
from advsweep.backends.reporter import SilentReporter
from advsweep.backends.tiny import pretraining
from advsweep.backends.tiny.pretraining import (
    PretrainingStoppedError,
    base_key,
    base_weights,
    pretrain,
)
from advsweep.backends.tiny.tokens import encode
from advsweep.backends.tiny.weights import flatten
from advsweep.errors import CheckpointError, ConfigError
from advsweep.tasks.countdown import Countdown
from advsweep.tasks.routes import Routes

RECIPE = {
    "layers": 1,
    "width": 16,
    "heads": 2,
    "kv_heads": 1,
    "mlp_width": 32,
    "pretraining_steps": 12,
    "pretraining_batch": 16,
    "pretraining_seed": 0,
}


class Listener(SilentReporter):
    """A reporter that keeps lines and progress, and asks to stop when told to."""

    def __init__(self, *, stop=False):
        self.lines = []
        self.done = []
        self.stop = stop
        self.waiting = threading.Event()

    def log(self, message):
        self.lines.append(message)
        self.waiting.set()

    def progress(self, stage, done, total):
        self.done.append((stage, done, total))

    def stop_requested(self):
        return self.stop


@pytest.fixture
def cache(tmp_path, monkeypatch):
    """A cache of the test's own."""
    monkeypatch.setenv("ADVSWEEP_CACHE", str(tmp_path / "cache"))
    return tmp_path / "cache"


@pytest.fixture
def model():
    return TinyModel(**RECIPE)


def same(first, second):
    return first.keys() == second.keys() and all(torch.equal(first[k], second[k]) for k in first)


def entry(cache):
    (path,) = cache.glob("base-models/*/checkpoints/step-*/model.safetensors")
    return path


# The recipe


@pytest.mark.slow
def test_pretraining_learns_the_corpus(task):
    """The loss on examples that it has not seen."""
    pairs = task.pretraining_pairs(256, np.random.default_rng(99))
    completions = encode(pairs[1], task, end=True)
    examples = encode(pairs[0], task), completions, completions.mask
    recipe = {"pretraining_steps": 150, "pretraining_batch": 64, "pretraining_lr": 0.01}
    untrained, trained = (
        TinyModel(**RECIPE | {"pretraining_steps": 0}),
        TinyModel(**RECIPE | recipe),
    )
    losses = [
        pretraining._loss(flatten(pretrain(model, task), model), model, *examples).item()
        for model in (untrained, trained)
    ]
    # Guessing among 17 tokens costs ln 17 = 2.8 nats; knowing where digits and operators
    # stand leaves ln 9 = 2.2 and ln 3 = 1.1 nats in turn, and digits come from the prompt.
    assert losses[0] > 2.5
    assert losses[1] < 1.5


def test_everything_in_the_recipe_is_in_the_key(model, task):
    changes = {
        field.name: getattr(model, field.name) / 2
        if type(getattr(model, field.name)) is float
        else getattr(model, field.name) * 2
        for field in dataclasses.fields(model)
        if getattr(model, field.name) is not None
    }
    changes |= {"pretraining_seed": 1, "tied_embeddings": False}
    changes |= {"random_share": 0.05, "left_to_right_share": 0.3}
    keys = {base_key(TinyModel(**{**RECIPE, name: v}), task) for name, v in changes.items()}
    keys |= {base_key(model, task), base_key(model, Countdown(levels=(0,)))}
    assert len(keys) == len(changes) + 2
    assert base_key(TinyModel(**RECIPE), Countdown()) == base_key(model, task)


def test_the_seed_of_a_run_is_the_seed_of_its_base(model, task):
    tied = TinyModel(**RECIPE | {"pretraining_seed": "seed"})
    assert tied.pretraining_seed is PretrainingSeed.RUN
    assert tied.plain()["pretraining_seed"] == "seed"
    assert TinyModel().pretraining_seed is PretrainingSeed.RUN
    assert tied.for_seed(3) == TinyModel(**RECIPE | {"pretraining_seed": 3})
    assert model.for_seed(3) is model
    # A base is known by its recipe, however the config said which seed.
    assert base_key(tied.for_seed(0), task) == base_key(model, task)
    assert base_key(tied.for_seed(1), task) != base_key(model, task)
    for refused in (base_key, pretrain):
        with pytest.raises(ConfigError, match="expected an integer for a model without a run"):
            refused(tied, task)


def test_runs_that_train_other_levels_share_a_base(model):
    for all_levels, some in (
        (Countdown(), Countdown(train_levels=(1, 2), train_per_level=9, seed=1)),
        (Routes(), Routes(levels=(0, 4), train_levels=(4,), held_out_per_level=3)),
    ):
        assert base_key(model, all_levels) == base_key(model, some)
    assert base_key(model, Countdown()) != base_key(model, Routes())


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"heads": 3}, "width: expected a multiple of 2 x heads = 6, got 64"),
        ({"kv_heads": 3}, "kv_heads: expected a divisor of heads = 4, got 3"),
        (
            {"random_share": 0.5, "left_to_right_share": 0.6},
            "left_to_right_share: expected at most 1 - random_share = 0.5, got 0.6",
        ),
    ],
)
def test_recipes_that_make_no_sense(change, message):
    with pytest.raises(ConfigError) as caught:
        TinyModel(**change)
    assert str(caught.value) == message


# The cache


def test_a_base_model_is_made_once(cache, model, task):
    first, second = Listener(), Listener()
    made = base_weights(model, task, first)
    assert first.done == [("pretraining", done, 12) for done in (0, 10, 12)]
    assert same(made, base_weights(model, task, second))
    assert not second.done
    assert not first.lines + second.lines
    assert same(made, pretrain(model, task))


def test_a_damaged_entry_is_made_again(cache, model, task):
    made = base_weights(model, task)
    content = bytearray(entry(cache).read_bytes())
    content[-5] ^= 1
    entry(cache).write_bytes(content)
    listener = Listener()
    assert same(made, base_weights(model, task, listener))
    assert "cached base model: " in listener.lines[0]
    assert "damaged" in listener.lines[0]
    assert listener.done
    quiet = Listener()
    base_weights(model, task, quiet)
    assert not quiet.lines


def test_a_read_only_cache_serves_what_it_has(cache, model, task, monkeypatch):
    made = base_weights(model, task)

    def refuse(*_, **__):
        raise PermissionError(13, "Permission denied")

    monkeypatch.setattr(Path, "mkdir", refuse)
    assert same(made, base_weights(model, task))
    with pytest.raises(CheckpointError, match="no permission; set ADVSWEEP_CACHE"):
        base_weights(TinyModel(**RECIPE | {"pretraining_seed": 1}), task)


def test_stopping_leaves_nothing_behind(cache, model, task):
    with pytest.raises(PretrainingStoppedError):
        base_weights(model, task, Listener(stop=True))
    assert not list(cache.glob("base-models/*/checkpoints/*"))
    listener = Listener()
    base_weights(model, task, listener)
    assert not listener.lines


def test_others_wait_and_say_so(cache, model, task, monkeypatch):
    """One builds; a second waits for it; a third is told to stop while it waits."""
    building, allowed = threading.Event(), threading.Event()
    builds = []

    def slow(*arguments):
        builds.append(1)
        building.set()
        assert allowed.wait(30)
        return pretrain(*arguments)

    monkeypatch.setattr(pretraining, "pretrain", slow)
    monkeypatch.setattr(pretraining, "_WAIT_SECONDS", 0.02)
    results = []
    listener = Listener()
    builder = threading.Thread(target=lambda: results.append(base_weights(model, task)))
    waiter = threading.Thread(target=lambda: results.append(base_weights(model, task, listener)))
    builder.start()
    assert building.wait(30)
    waiter.start()
    assert listener.waiting.wait(30)
    with pytest.raises(PretrainingStoppedError):
        base_weights(model, task, Listener(stop=True))
    allowed.set()
    builder.join(30)
    waiter.join(30)
    assert len(builds) == 1
    assert same(*results)
    assert listener.lines == ["another run is pretraining the base model; waiting for it"]


def _build_and_die(recipe):
    """A process that is killed in the middle of a pretraining."""

    def die(*_):
        os._exit(1)

    pretraining._loss = die
    base_weights(TinyModel(**recipe), Countdown())


@pytest.mark.slow
def test_a_builder_that_dies_frees_its_lock(cache, model, task):
    process = multiprocessing.get_context("spawn").Process(target=_build_and_die, args=(RECIPE,))
    process.start()
    process.join(60)
    assert process.exitcode == 1
    started = time.monotonic()
    listener = Listener()
    base_weights(model, task, listener)
    assert not listener.lines
    assert time.monotonic() - started < 30
