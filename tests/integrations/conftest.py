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


def save_policy(folder: Path, words: list[str], kind: str = "Qwen2", **chat: Any) -> Path:
    """Write a folder that transformers loads: a model of one random layer over these words.

    Args:
        kind: of the model; AutoTokenizer makes a tokenizer of Qwen2's of that of a Qwen2.
        chat: how the tokenizer writes and reads conversations.
    """
    pytest.importorskip("trl")
    import torch
    import transformers
    from tokenizers import Tokenizer, models, pre_tokenizers
    from transformers import PreTrainedTokenizerFast

    words = ["[PAD]", "[EOS]", "[UNK]", *words]
    tokens = Tokenizer(models.WordLevel({w: i for i, w in enumerate(words)}, unk_token="[UNK]"))
    tokens.pre_tokenizer = pre_tokenizers.Whitespace()
    special = {"pad_token": "[PAD]", "eos_token": "[EOS]", "unk_token": "[UNK]"}
    PreTrainedTokenizerFast(tokenizer_object=tokens, **special, **chat).save_pretrained(folder)
    torch.manual_seed(0)
    size = {"hidden_size": 16, "intermediate_size": 16, "num_hidden_layers": 1}
    heads = {"num_attention_heads": 2, "num_key_value_heads": 1}
    of_kind = getattr(transformers, f"{kind}Config")
    config = of_kind(vocab_size=len(words), pad_token_id=0, eos_token_id=1, **size, **heads)
    getattr(transformers, f"{kind}ForCausalLM")(config).save_pretrained(folder)
    return folder


@pytest.fixture(scope="session")
def policy_folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return save_policy(tmp_path_factory.mktemp("policy"), [*"abcdefghijkl"])


# A conversation of one word a token. Each of the first four letters calls the tool `step`; TRL
# wants a template that could write calls too, and never has it write one.
_CHAT_TEMPLATE = (
    "{% for message in messages %}{{ message.role }} {{ message.content }}"
    "{% for call in message.tool_calls or [] %} {{ call.function.name }}"
    "{{ call.function.arguments }}{% endfor %} [EOS] {% endfor %}"
    "{% if add_generation_prompt %}assistant {% endif %}"
)
_RESPONSE_TEMPLATE = {
    "defaults": {"role": "assistant"},
    "start_anchor": "assistant",
    "fields": {
        "tool_calls": {
            "open_pattern": r"\b(?P<word>[a-d])\b",
            "close_pattern": r"\s*",
            "content": "text",
            "repeats": True,
            "transform": {
                "type": "function",
                "function": {"name": "step", "arguments": {"word": "{word}"}},
            },
        },
        "content": {"close_pattern": r"\s*\[EOS\]", "content": "text"},
    },
}


@pytest.fixture(scope="session")
def agent_folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A policy that talks to tools: as random as it is, it often calls one."""
    words = ["user", "assistant", "tool", *"abcdefghijkl"]
    chat = {"chat_template": _CHAT_TEMPLATE, "response_template": _RESPONSE_TEMPLATE}
    return save_policy(tmp_path_factory.mktemp("agent"), words, "Llama", **chat)


MakeTrainer = Callable[..., Any]


@pytest.fixture
def make_trainer(policy_folder: Path, tmp_path: Path) -> MakeTrainer:
    """`make_trainer(cls, reward_funcs, columns, arguments, **settings)`: a trainer of TRL.

    A step takes every row of the dataset once, in order, with one prompt for all of them.
    """
    from datasets import Dataset
    from trl import GRPOConfig, RLOOConfig, RLOOTrainer

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
            reward_funcs=reward_funcs,
            args=(RLOOConfig if issubclass(cls, RLOOTrainer) else GRPOConfig)(**given),
            train_dataset=Dataset.from_dict({"prompt": ["a b"] * rows, **columns}),
            **{"model": str(policy_folder), **(arguments or {})},
        )

    return make
