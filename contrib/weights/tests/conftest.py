"""A finished run of the tiny backend, and the command line in this process."""

from __future__ import annotations

import os
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from advsweep.cli import main

os.environ.setdefault("ADVSWEEP_CACHE", tempfile.mkdtemp(prefix="advsweep-cache-"))

SMALL = [
    "backend=tiny",
    "executor=debug",
    "steps=4",
    "prompts_per_step=8",
    "model.layers=1",
    "model.width=32",
    "model.heads=2",
    "model.kv_heads=1",
    "model.mlp_width=64",
    "model.pretraining_steps=100",
    "model.pretraining_batch=64",
    "model.pretraining_lr=0.01",
    "model.pretraining_warmup=10",
    "model.pretraining_seed=0",
    "model.random_share=0",
    "model.left_to_right_share=0",
    "optimizer.lr=0.003",
    "task.levels=[0,1]",
    "task.held_out_per_level=2",
    "evaluation.n=2",
    "evaluation.k=[1]",
    "backend.checkpoint_every=2",
]

Call = Callable[..., tuple[int, str, str]]


@pytest.fixture(scope="session")
def trained(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with a store: a sweep `two` of two runs of one base model."""
    folder = tmp_path_factory.mktemp("trained")
    with pytest.MonkeyPatch.context() as patched:
        patched.chdir(folder)
        patched.delenv("ADVSWEEP_STORE", raising=False)
        sweep = ["estimator=grpo,ha_dw", "--name", "two"]
        patched.setattr("sys.argv", ["advsweep", "sweep", *SMALL, *sweep])
        with pytest.raises(SystemExit) as end:
            main()
        assert not end.value.code
    return folder


@pytest.fixture
def call(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Iterator[Call]:
    """`advsweep ARGUMENTS`: its exit code, and what it printed on stdout and stderr."""

    def called(*arguments: str) -> tuple[int, str, str]:
        monkeypatch.delenv("ADVSWEEP_STORE", raising=False)
        monkeypatch.setattr("sys.argv", ["advsweep", *arguments])
        with pytest.raises(SystemExit) as end:
            main()
        printed = capsys.readouterr()
        return int(end.value.code or 0), printed.out, printed.err

    return called
