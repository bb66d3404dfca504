"""Hugging Face folders, as transformers and vLLM load them; written without transformers."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING, Any

from advsweep.backends.tiny.weights import Weights, to_bytes
from advsweep.errors import ConfigError

if TYPE_CHECKING:
    from advsweep.backends.tiny.model_config import TinyModel
    from advsweep.tasks.base import SymbolTask

END = "<eos>"
PADDING = "<pad>"


def export_folder(
    target: Path, weights: Weights, model: TinyModel, task: SymbolTask, *, temperature: float
) -> None:
    """Writes model, tokenizer and generation settings.

    Args:
        target: the folder, made if it is not there; files of the same names are replaced.
        temperature: the default that `generate` samples at.

    Raises:
        ConfigError: the folder cannot be written.
    """
    documents = {
        "config.json": _config(model, task),
        "generation_config.json": _generation(task, temperature),
        "tokenizer.json": _tokenizer(task),
        "tokenizer_config.json": _tokenizer_config(task),
        "special_tokens_map.json": {"eos_token": END, "pad_token": PADDING},
    }
    try:
        target.mkdir(parents=True, exist_ok=True)
        (target / "model.safetensors").write_bytes(to_bytes(weights))
        for name, content in documents.items():
            (target / name).write_text(json.dumps(content, indent=2) + "\n", encoding="utf-8")
    except OSError as error:
        raise ConfigError(
            f"{target}: expected a folder that can be written, got: {error.strerror}"
        ) from error


def _config(model: TinyModel, task: SymbolTask) -> dict[str, Any]:
    return {
        "architectures": ["Qwen2ForCausalLM"],
        "model_type": "qwen2",
        "vocab_size": task.vocabulary_size,
        "hidden_size": model.width,
        "intermediate_size": model.mlp_width,
        "num_hidden_layers": model.layers,
        "num_attention_heads": model.heads,
        "num_key_value_heads": model.kv_heads,
        "hidden_act": "silu",
        "max_position_embeddings": task.max_prompt_length + task.max_completion_length,
        "rms_norm_eps": model.norm_eps,
        # transformers before 5 and vLLM read the first, transformers 5 the second.
        "rope_theta": model.rope_theta,
        "rope_parameters": {"rope_type": "default", "rope_theta": model.rope_theta},
        "tie_word_embeddings": model.tied_embeddings,
        "use_sliding_window": False,
        "attention_dropout": 0.0,
        "bos_token_id": None,
        "eos_token_id": task.eos_id,
        "pad_token_id": task.pad_id,
        "torch_dtype": "float32",
    }


def _generation(task: SymbolTask, temperature: float) -> dict[str, Any]:
    """Plain sampling: neither top-k nor top-p, as rollouts and evaluations are made."""
    return {
        "do_sample": True,
        "temperature": temperature,
        "top_k": 0,
        "top_p": 1.0,
        "max_new_tokens": task.max_completion_length,
        "eos_token_id": task.eos_id,
        "pad_token_id": task.pad_id,
    }


def _tokenizer(task: SymbolTask) -> dict[str, Any]:
    """One token per character: byte-pair encoding without a single merge.

    transformers reads a qwen2 folder as byte-pair encoding, whatever its tokenizer says.
    """
    vocabulary = {character: i for i, character in enumerate(task.alphabet)}
    marks = {END: task.eos_id, PADDING: task.pad_id}
    flags = {"single_word": False, "lstrip": False, "rstrip": False, "normalized": False}
    return {
        "version": "1.0",
        "truncation": None,
        "padding": None,
        "added_tokens": [
            {"id": i, "content": mark, **flags, "special": True} for mark, i in marks.items()
        ],
        "normalizer": None,
        "pre_tokenizer": None,
        "post_processor": None,
        "decoder": {"type": "Fuse"},
        "model": {"type": "BPE", "vocab": vocabulary | marks, "merges": [], "unk_token": None},
    }


def _tokenizer_config(task: SymbolTask) -> dict[str, Any]:
    return {
        "tokenizer_class": "PreTrainedTokenizerFast",
        "eos_token": END,
        "pad_token": PADDING,
        "unk_token": None,
        "padding_side": "left",
        "clean_up_tokenization_spaces": False,
        "model_max_length": task.max_prompt_length + task.max_completion_length,
    }
