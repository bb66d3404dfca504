"""A policy small enough that a real trainer of a peer steps in milliseconds."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest


def pytest_ignore_collect(collection_path: Path, config: pytest.Config) -> bool | None:
    """Ignore the files that load TRL if slow tests are left out: its import takes seconds."""
    skips_slow = str(config.option.markexpr).startswith("not slow")
    return True if skips_slow and collection_path.name.startswith("test_trl") else None


WORDS = ["[PAD]", "[EOS]", "[UNK]", *"abcdefghijkl"]


@pytest.fixture(scope="session")
def policy_folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder that transformers loads: a Qwen2 of one layer and a tokenizer of single letters."""
    pytest.importorskip("trl")
    import torch
    from tokenizers import Tokenizer, models, pre_tokenizers
    from transformers import PreTrainedTokenizerFast, Qwen2Config, Qwen2ForCausalLM

    folder = tmp_path_factory.mktemp("policy")
    words = Tokenizer(models.WordLevel({w: i for i, w in enumerate(WORDS)}, unk_token="[UNK]"))
    words.pre_tokenizer = pre_tokenizers.Whitespace()
    tokenizer = PreTrainedTokenizerFast(
        tokenizer_object=words, pad_token="[PAD]", eos_token="[EOS]", unk_token="[UNK]"
    )
    tokenizer.save_pretrained(folder)
    torch.manual_seed(0)
    config = Qwen2Config(
        vocab_size=len(WORDS),
        hidden_size=16,
        intermediate_size=16,
        num_hidden_layers=1,
        num_attention_heads=2,
        num_key_value_heads=1,
        pad_token_id=0,
        eos_token_id=1,
    )
    Qwen2ForCausalLM(config).save_pretrained(folder)
    return folder


MakeTrainer = Callable[..., Any]


@pytest.fixture
def make_trainer(policy_folder: Path, tmp_path: Path) -> MakeTrainer:
    """`make_trainer(cls, reward_funcs, columns, arguments, **settings)`: a GRPOTrainer of TRL.

    A step takes every row of the dataset once, in order, with one prompt for all of them.
    """
    from datasets import Dataset
    from trl import GRPOConfig

    def make(
        cls: type,
        reward_funcs: list[Callable[..., Any]],
        columns: dict[str, list[Any]],
        arguments: dict[str, Any] | None = None,
        **settings: Any,
    ) -> Any:
        rows = len(next(iter(columns.values())))
        given = {
            "output_dir": str(tmp_path / "output"),
            "use_cpu": True,
            "bf16": False,
            "gradient_checkpointing": False,
            "per_device_train_batch_size": rows * settings["num_generations"],
            "max_completion_length": 3,
            "shuffle_dataset": False,
            "report_to": "none",
            "save_strategy": "no",
            "disable_tqdm": True,
            **settings,
        }
        return cls(
            model=str(policy_folder),
            reward_funcs=reward_funcs,
            args=GRPOConfig(**given),
            train_dataset=Dataset.from_dict({"prompt": ["a b"] * rows, **columns}),
            **(arguments or {}),
        )

    return make
