"""Weights by the names that transformers' Qwen2ForCausalLM gives them.

Training, checkpoints and exports hold the same tensors, so that an export is a copy.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

import safetensors
import safetensors.torch
import torch
from torch import Tensor

if TYPE_CHECKING:
    from advsweep.backends.tiny.model_config import TinyModel

Weights = dict[str, Tensor]

EMBEDDING = "model.embed_tokens.weight"
FINAL_NORM = "model.norm.weight"
HEAD = "lm_head.weight"


def weight_shapes(model: TinyModel, vocabulary: int) -> dict[str, tuple[int, ...]]:
    """The shape of every weight, in the order of the forward pass."""
    width, kv_width = model.width, model.kv_heads * model.head_width
    block = {
        "input_layernorm.weight": (width,),
        "self_attn.q_proj.weight": (width, width),
        "self_attn.q_proj.bias": (width,),
        "self_attn.k_proj.weight": (kv_width, width),
        "self_attn.k_proj.bias": (kv_width,),
        "self_attn.v_proj.weight": (kv_width, width),
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


def block_weights(weights: Weights, block: int) -> Weights:
    """One block's weights, by their names within it."""
    prefix = _block_prefix(block)
    return {n.removeprefix(prefix): w for n, w in weights.items() if n.startswith(prefix)}


def _block_prefix(block: int) -> str:
    return f"model.layers.{block}."


def initial_weights(model: TinyModel, vocabulary: int, generator: torch.Generator) -> Weights:
    """Random weights: norms 1, biases 0, matrices normal with variance 1 / inputs.

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
    """The weights as a safetensors file."""
    detached = {name: w.detach().contiguous() for name, w in weights.items()}
    return safetensors.torch.save(detached, metadata={"format": "pt"})


def from_bytes(content: bytes) -> Weights:
    return safetensors.torch.load(content)
