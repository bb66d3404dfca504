"""Weights by the names of transformers' Qwen2ForCausalLM, as one vector, and their export.

Checkpoints and exports hold the same tensors, so an export is a copy. Training holds them as one
vector, in the order of `weight_shapes`: an optimizer step, a norm or a copy is then one operation,
and weights that the forward pass applies to the same input are one matrix.
"""

from __future__ import annotations

import json
import math
from pathlib import Path
from typing import TYPE_CHECKING, Any

import safetensors
import safetensors.torch
import torch
from torch import Tensor

from advsweep.errors import ConfigError, reason_of

if TYPE_CHECKING:
    from jaxtyping import Float

    from advsweep.backends.models import TinyModel
    from advsweep.tasks.base import SymbolTask

Weights = dict[str, Tensor]

EMBEDDING = "model.embed_tokens.weight"
FINAL_NORM = "model.norm.weight"
HEAD = "lm_head.weight"


def weight_shapes(model: TinyModel, vocabulary: int) -> dict[str, tuple[int, ...]]:
    """Return the shape of every weight, in the order of the forward pass."""
    width = model.width
    kv_width = model.kv_heads * model.head_width
    block = {
        "input_layernorm.weight": (width,),
        "self_attn.q_proj.weight": (width, width),
        "self_attn.k_proj.weight": (kv_width, width),
        "self_attn.v_proj.weight": (kv_width, width),
        "self_attn.q_proj.bias": (width,),
        "self_attn.k_proj.bias": (kv_width,),
        "self_attn.v_proj.bias": (kv_width,),
        "self_attn.o_proj.weight": (width, width),
        "post_attention_layernorm.weight": (width,),
        "mlp.gate_proj.weight": (model.mlp_width, width),
        "mlp.up_proj.weight": (model.mlp_width, width),
        "mlp.down_proj.weight": (width, model.mlp_width),
    }
    shapes: dict[str, tuple[int, ...]] = {EMBEDDING: (vocabulary, width)}
    for i in range(model.layers):
        shapes |= {_block_prefix(i) + part: shape for part, shape in block.items()}
    shapes[FINAL_NORM] = (width,)
    if not model.tied_embeddings:
        shapes[HEAD] = (vocabulary, width)
    return shapes


def flatten(weights: Weights, model: TinyModel) -> Float[Tensor, " weights"]:
    """Return a copy of the weights as one vector."""
    names = weight_shapes(model, weights[EMBEDDING].shape[0])
    return torch.cat([weights[name].detach().reshape(-1) for name in names])


def unflatten(flat: Float[Tensor, " weights"], model: TinyModel) -> Weights:
    """Return views of a vector of weights, by their names."""
    fixed = _count_weights(model, symbols=0)
    per_symbol = _count_weights(model, symbols=1) - fixed
    shapes = weight_shapes(model, (flat.numel() - fixed) // per_symbol)
    parts = torch.split(flat, [math.prod(shape) for shape in shapes.values()])
    return {n: part.view(shapes[n]) for n, part in zip(shapes, parts, strict=True)}


def _count_weights(model: TinyModel, symbols: int) -> int:
    """Return the number of weights with a vocabulary of some symbols."""
    return sum(math.prod(shape) for shape in weight_shapes(model, symbols).values())


def last_layers(model: TinyModel, layers: int) -> list[str]:
    """Return the names of the weights of the last blocks, the final norm and an untied head."""
    first = model.layers - layers
    prefixes = tuple(_block_prefix(block) for block in range(first, model.layers))
    names = [name for name in weight_shapes(model, 1) if name.startswith(prefixes)]
    names.append(FINAL_NORM)
    if not model.tied_embeddings:
        names.append(HEAD)
    return names


def _block_prefix(block: int) -> str:
    return f"model.layers.{block}."


def initial_weights(model: TinyModel, vocabulary: int, generator: torch.Generator) -> Weights:
    """Return random weights: norms 1, biases 0, matrices normal with variance 1 / inputs.

    Matrices that write to the residual stream are smaller by √(2 layers), as in GPT-2.
    """
    weights: Weights = {}
    for name, shape in weight_shapes(model, vocabulary).items():
        if name.endswith("norm.weight"):
            weights[name] = torch.ones(shape)
        elif name.endswith("bias"):
            weights[name] = torch.zeros(shape)
        else:
            writes = name.endswith(("o_proj.weight", "down_proj.weight"))
            inputs = shape[1] * (2 * model.layers if writes else 1)
            weights[name] = torch.randn(shape, generator=generator) / math.sqrt(inputs)
    return weights


def to_bytes(weights: Weights) -> bytes:
    """Return the weights as a safetensors file."""
    # Copies: a file holds no tensors that share memory.
    copies = {name: w.detach().clone() for name, w in weights.items()}
    return safetensors.torch.save(copies, metadata={"format": "pt"})


def from_bytes(content: bytes) -> Weights:
    return safetensors.torch.load(content)


END = "<eos>"
PADDING = "<pad>"


def export_folder(
    target: Path, weights: Weights, model: TinyModel, task: SymbolTask, *, temperature: float
) -> None:
    """Write model, tokenizer and generation settings as a Hugging Face folder.

    Args:
        target: the folder, created if missing; files of the same names are replaced.
        temperature: default temperature of `generate`.

    Raises:
        ConfigError: the folder cannot be written.
    """
    length = task.max_prompt_length + task.max_completion_length
    marks = {END: task.eos_id, PADDING: task.pad_id}
    flags = {"single_word": False, "lstrip": False, "rstrip": False, "normalized": False}
    vocabulary = {character: i for i, character in enumerate(task.alphabet)}
    ids = {"eos_token_id": task.eos_id, "pad_token_id": task.pad_id}
    documents: dict[str, dict[str, Any]] = {
        "config.json": {
            "architectures": ["Qwen2ForCausalLM"],
            "model_type": "qwen2",
            "vocab_size": task.vocabulary_size,
            "hidden_size": model.width,
            "intermediate_size": model.mlp_width,
            "num_hidden_layers": model.layers,
            "num_attention_heads": model.heads,
            "num_key_value_heads": model.kv_heads,
            "hidden_act": "silu",
            "max_position_embeddings": length,
            "rms_norm_eps": model.norm_eps,
            # transformers before 5 and vLLM read `rope_theta`, transformers 5 `rope_parameters`.
            "rope_theta": model.rope_theta,
            "rope_parameters": {"rope_type": "default", "rope_theta": model.rope_theta},
            "tie_word_embeddings": model.tied_embeddings,
            "use_sliding_window": False,
            "attention_dropout": 0.0,
            "bos_token_id": None,
            **ids,
            "torch_dtype": "float32",
        },
        # Plain sampling, without top-k and top-p, as in rollouts.
        "generation_config.json": {
            "do_sample": True,
            "temperature": temperature,
            "top_k": 0,
            "top_p": 1.0,
            "max_new_tokens": task.max_completion_length,
            **ids,
        },
        # One token per character: byte-pair encoding without merges. transformers reads every
        # qwen2 folder as byte-pair encoding, whatever its tokenizer says.
        "tokenizer.json": {
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
        },
        "tokenizer_config.json": {
            "tokenizer_class": "PreTrainedTokenizerFast",
            "eos_token": END,
            "pad_token": PADDING,
            "unk_token": None,
            "padding_side": "left",
            "clean_up_tokenization_spaces": False,
            "model_max_length": length,
        },
        "special_tokens_map.json": {"eos_token": END, "pad_token": PADDING},
    }
    try:
        target.mkdir(parents=True, exist_ok=True)
        (target / "model.safetensors").write_bytes(to_bytes(weights))
        for name, content in documents.items():
            (target / name).write_text(json.dumps(content, indent=2) + "\n", encoding="utf-8")
    except OSError as error:
        raise ConfigError(
            f"{target}: expected a folder that can be written, but {reason_of(error)}"
        ) from error
