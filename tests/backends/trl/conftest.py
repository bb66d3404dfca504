"""What the tests of the TRL backend share: a task whose groups are mixed, and stock TRL."""

from __future__ import annotations

import importlib.util
import json
import runpy
from dataclasses import dataclass, replace
from pathlib import Path
from typing import ClassVar

import numpy as np
import pytest

from advsweep.cli import main
from advsweep.tasks.countdown import Countdown

FOLDER = Path(__file__).parent
STOCK = FOLDER / "stock.py"
WITHOUT_TRL = {
    "test_generation.py",
    "test_options.py",
    "test_releases.py",
}
"""Files whose import does not load TRL; `make test` runs those of their tests that are quick."""


def pytest_ignore_collect(collection_path, config):
    """Ignore files that load TRL if TRL is missing, or if slow tests are left out anyway.

    Importing TRL takes seconds in each process that collects tests.
    """
    if not collection_path.name.startswith("test_") or collection_path.name in WITHOUT_TRL:
        return None
    skips_slow = str(config.option.markexpr).startswith("not slow")
    return True if skips_slow or importlib.util.find_spec("trl") is None else None


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(items):
    """Mark the tests of files that load TRL as slow."""
    for item in items:
        if item.path.is_relative_to(FOLDER) and item.path.name not in WITHOUT_TRL:
            item.add_marker(pytest.mark.slow)


@dataclass(kw_only=True)
class Parity(Countdown):
    """Countdown's prompts; an answer of even length is right, so that most groups are mixed."""

    name: ClassVar[str] = "parity"

    def score(self, problems, completions):
        return np.array([float(len(text) % 2 == 0) for text in completions])


@pytest.fixture
def parity_run(small_run):
    """Builds a small run whose groups are mixed."""

    def build(**changes):
        task = Parity(levels=(0, 1), held_out_per_level=3)
        return replace(small_run("trl", **changes), task=task)

    return build


@pytest.fixture
def base_model(exported_base):
    """The model that commands mean by MODEL."""
    return exported_base()


@pytest.fixture
def advsweep(monkeypatch, capfd, tmp_path, base_model):
    """`advsweep(*ARGUMENTS)`, in this process and an empty folder: its JSON, or its text.

    With `code=` what it says on stderr, before it exits with that.
    """

    def call(*arguments, store="a.db", code=None):
        monkeypatch.chdir(tmp_path)
        filled = [str(base_model) if argument == "MODEL" else argument for argument in arguments]
        monkeypatch.setattr("sys.argv", ["advsweep", *filled, "--store", store])
        with pytest.raises(SystemExit) as exit_:
            main()
        out, err = capfd.readouterr()
        assert exit_.value.code == (code or 0), err
        if code is not None:
            return err
        return json.loads(out) if "json" in arguments else out

    return call


@pytest.fixture
def stock_training(tmp_path):
    """Trains as a run would be, by TRL alone; returns the loss of every pass and the weights."""
    train_stock = runpy.run_path(str(STOCK))["train_stock"]
    return lambda run, **settings: train_stock(run, tmp_path / "stock", **settings)


@pytest.fixture
def gaps(monkeypatch):
    """The gaps of log π that trainings measure."""
    from advsweep.backends.trl import trainer

    measured = []
    measure = trainer.measure_gap

    def record(*arguments):
        measured.append(measure(*arguments))
        return measured[-1]

    monkeypatch.setattr(trainer, "measure_gap", record)
    return measured


# Layers of random models, wide enough in their weights that positions and padding matter.
_HEADS = {"num_attention_heads": 4}
_LAYERS = {"hidden_size": 32, "num_hidden_layers": 1, **_HEADS}
_WIDE = {"initializer_range": 0.3}
_OLD_NAMES = {"n_embd": 32, "n_layer": 1, "n_head": 4, "n_positions": 64, **_WIDE}
RANDOM_MODELS = {
    "qwen2": {**_LAYERS, "intermediate_size": 64, "num_key_value_heads": 2},
    "llama": {**_LAYERS, "intermediate_size": 64, "num_key_value_heads": 2},
    "gpt2": _OLD_NAMES,
    "gpt_bigcode": _OLD_NAMES,
    "gpt_neo": {
        "hidden_size": 32,
        "num_layers": 1,
        "num_heads": 4,
        "attention_types": [[["global"], 1]],
        "max_position_embeddings": 64,
        **_WIDE,
    },
    "opt": {
        **_LAYERS,
        "ffn_dim": 64,
        "word_embed_proj_dim": 32,
        "max_position_embeddings": 64,
        "init_std": 0.3,
    },
    "bloom": {"hidden_size": 32, "n_layer": 1, "n_head": 4},
    # It ignores the attention mask, and so reads padding on the left.
    "rwkv": {"hidden_size": 32, "num_hidden_layers": 2},
}


@pytest.fixture(scope="session")
def random_model(exported_base, tmp_path_factory):
    """`random_model(kind)` returns a folder with random weights and the tokenizer of small runs."""
    folders = {}

    def make(kind):
        if kind not in folders:
            folders[kind] = _make_random_model(kind, exported_base(), tmp_path_factory.mktemp(kind))
        return folders[kind]

    return make


def _make_random_model(kind, base, folder):
    import torch
    from transformers import AutoConfig, AutoModelForCausalLM, AutoTokenizer

    tokenizer = AutoTokenizer.from_pretrained(base, padding_side="left")
    marks = {"pad_token_id": tokenizer.pad_token_id, "eos_token_id": tokenizer.eos_token_id}
    config = AutoConfig.for_model(
        kind, vocab_size=len(tokenizer), bos_token_id=None, **marks, **RANDOM_MODELS[kind]
    )
    torch.manual_seed(0)
    AutoModelForCausalLM.from_config(config).save_pretrained(folder)
    tokenizer.save_pretrained(folder)
    return folder
