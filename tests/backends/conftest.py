"""What the tests of backends share: small runs of every backend, and a reporter that records."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Protocol

import pytest

from advsweep.backends.build import build_run
from advsweep.backends.reporter import CountedProblem, SilentReporter
from advsweep.tasks.base import Completions, Split, Task


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(items):
    """Mark tests with the parameter `trl` as slow: importing TRL alone takes seconds."""
    for item in items:
        parameters = getattr(item, "callspec", None)
        if parameters and "trl" in filter(_is_text, parameters.params.values()):
            item.add_marker(pytest.mark.slow)


def _is_text(value):
    return isinstance(value, str)


# Solves about a tenth of the two easiest levels, so that training has something to go on.
SMALL_MODEL = {
    "name": "tiny",
    "layers": 1,
    "width": 32,
    "heads": 2,
    "kv_heads": 1,
    "mlp_width": 64,
    "pretraining_steps": 100,
    "pretraining_batch": 64,
    "pretraining_lr": 0.01,
    "pretraining_warmup": 10,
    "pretraining_seed": 0,
    "random_share": 0.0,
    "left_to_right_share": 0.0,
}


class KilledError(Exception):
    """Stands for the death of the process in the middle of a training."""


@dataclass
class Recorder(SilentReporter):
    """Keeps what a backend reports; evaluates by sampling a few completions.

    Attributes:
        stop_after: the step after which it asks to stop.
        die_after: the step after whose metrics the training is interrupted.
        die_evaluating: the step whose evaluation is interrupted.
        on_metrics: called with every step once its metrics are recorded.
    """

    task: Task
    stop_after: int | None = None
    die_after: int | None = None
    die_evaluating: int | None = None
    on_metrics: Callable[[int], None] = lambda step: None
    points: dict[int, dict[str, float]] = field(default_factory=dict)
    evaluations: dict[int, Completions] = field(default_factory=dict)
    evaluated: list[int] = field(default_factory=list)
    counts: dict[int, tuple[str, list[CountedProblem]]] = field(default_factory=dict)
    checkpoints: list[tuple[int, Path]] = field(default_factory=list)
    gone: list[Path] = field(default_factory=list)
    resumptions: list[int] = field(default_factory=list)
    lines: list[str] = field(default_factory=list)

    def metrics(self, step, values):
        assert step == max(self.points, default=step - 1) + 1
        self.points[step] = dict(values)
        self.on_metrics(step)
        if step == self.die_after:
            raise KilledError

    def evaluate(self, step, sampler):
        if step == self.die_evaluating:
            raise KilledError
        self.evaluated.append(step)
        self.evaluations[step] = ask(sampler, self.task)

    def counted(self, step, task, problems):
        self.counts[step] = (task, list(problems))

    def checkpoint(self, step, path):
        assert path.is_dir()
        self.checkpoints.append((step, path))

    def pruned(self, path):
        assert not path.exists()
        self.gone.append(path)

    def resumed(self, step):
        self.resumptions.append(step)
        self.points = {s: values for s, values in self.points.items() if s <= step}

    def stop_requested(self):
        return self.stop_after is not None and max(self.points, default=0) >= self.stop_after

    def log(self, message):
        self.lines.append(message)

    def progress(self, stage, done, total):
        assert 0 <= done <= total

    @property
    def lasting(self):
        """The metrics that two equal trainings share: all but times."""
        return {
            step: {
                name: v for name, v in values.items() if not name.startswith(("time/", "memory/"))
            }
            for step, values in self.points.items()
        }


def ask(sampler, task, *, n=3, seed=0):
    return sampler.sample(task.problems(Split.HELD_OUT), n, temperature=1.0, seed=seed)


@pytest.fixture(name="ask")
def _ask():
    return ask


@pytest.fixture
def recorder():
    return Recorder


@pytest.fixture(name="KilledError")
def _killed_error():
    return KilledError


@pytest.fixture(scope="session")
def exported_base(tmp_path_factory, cache_directory):
    """A folder that transformers loads: the tiny base model that the small runs start from."""
    folder = tmp_path_factory.mktemp("base")

    def export():
        if not (folder / "config.json").exists():
            with pytest.MonkeyPatch.context() as patched:
                patched.setenv("ADVSWEEP_CACHE", str(cache_directory))
                run = build_run(_config("tiny", SMALL_MODEL))
                run.backend.export(run, folder, 0, folder)
        return folder

    return export


def _config(backend, model, **settings):
    return {
        "estimator": {"name": "grpo"},
        "objective": {"name": "clipped"},
        "rollout": {"name": "plain"},
        "task": {"name": "countdown", "levels": [0, 1], "held_out_per_level": 3},
        "model": model,
        "optimizer": {"name": "adamw", "lr": 0.003},
        "generation": {"name": "sampling"},
        "evaluation": {"name": "standard", "n": 2, "k": [1, 2], "every": 2},
        "backend": {"name": backend, "checkpoint_every": 2, **settings},
        "group_size": 6,
        "prompts_per_step": 8,
        "steps": 5,
        "seed": 1,
    }


@pytest.fixture
def small_config(exported_base):
    """Makes the config of a run of a backend that takes a moment."""

    def make(backend, /, **changes):
        if backend == "trl":
            model = {"name": "hf", "path": str(exported_base())}
            # Two updates a step of two passes each, as small runs of tiny have two minibatches.
            settings = {"minibatches": 2, "device_batch": 12, "skip_zero_advantages": True}
            config = _config(backend, model, gradient_checkpointing=False, **settings)
            # Each of whose five steps has a mixed group.
            config["seed"] = 4
        elif backend == "bandit":
            config = _config(backend, {"name": "table"}, exact_every=0)
            config["task"] = {"name": "bandit", "levels": [0, 1], "rates": [0.4, 0.2]}
        else:
            config = _config(backend, SMALL_MODEL)
        for key, value in changes.items():
            merged = isinstance(value, dict) and isinstance(config.get(key), dict)
            config[key] = {**config[key], **value} if merged else value
        return config

    return make


@pytest.fixture
def small_run(small_config):
    """Builds a run of a backend that takes a moment."""
    return lambda backend, /, **changes: build_run(small_config(backend, **changes))


class Train(Protocol):
    def __call__(self, run, directory, **recorder): ...


@pytest.fixture
def train():
    """Trains a run in a directory and gives back what was reported."""

    def train(run, directory, **recorder):
        reporter = Recorder(run.task, **recorder)
        run.backend.train(run, directory, reporter)
        return reporter

    return train
