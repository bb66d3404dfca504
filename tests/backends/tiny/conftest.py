"""What the tests of the tiny backend share: small models, and a plain forward pass."""

import math
from dataclasses import dataclass
from typing import ClassVar

import numpy as np
import pytest
import torch
import torch.nn.functional as F

from advsweep.backends.models import TinyModel
from advsweep.backends.tiny.tokens import encode
from advsweep.backends.tiny.weights import initial_weights
from advsweep.objectives.clipped import Clipped
from advsweep.tasks.base import Split
from advsweep.tasks.countdown import Countdown

SIZES = {"layers": 2, "width": 32, "heads": 4, "mlp_width": 48}
MODELS = {
    "grouped": TinyModel(**SIZES, kv_heads=2),
    "one group": TinyModel(**SIZES, kv_heads=1),
    "ungrouped, untied": TinyModel(**SIZES, kv_heads=4, tied_embeddings=False),
    "one layer": TinyModel(**{**SIZES, "layers": 1}, kv_heads=2, rope_theta=100.0),
}


def plain_logits(weights, model, tokens):
    """Qwen2's forward pass for one sequence, as its report and transformers write it."""
    length, d = len(tokens), model.head_width
    x = weights["model.embed_tokens.weight"][tokens]

    def norm(x, name):
        return x / (x.square().mean(-1, keepdim=True) + model.norm_eps).sqrt() * weights[name]

    def project(x, name, heads):
        y = F.linear(x, weights[f"{name}.weight"], weights[f"{name}.bias"])
        return y.view(length, heads, d).transpose(0, 1)

    frequencies = model.rope_theta ** (-torch.arange(0, d, 2, dtype=x.dtype) / d)
    angles = torch.arange(length, dtype=x.dtype)[:, None] * frequencies

    def rotate(x):
        first, second = x[..., : d // 2], x[..., d // 2 :]
        cos, sin = angles.cos(), angles.sin()
        return torch.cat((first * cos - second * sin, second * cos + first * sin), dim=-1)

    for i in range(model.layers):
        block = f"model.layers.{i}"
        y = norm(x, f"{block}.input_layernorm.weight")
        q = rotate(project(y, f"{block}.self_attn.q_proj", model.heads))
        k = rotate(project(y, f"{block}.self_attn.k_proj", model.kv_heads))
        v = project(y, f"{block}.self_attn.v_proj", model.kv_heads)
        k, v = (t.repeat_interleave(model.heads // model.kv_heads, dim=0) for t in (k, v))
        scores = q @ k.transpose(1, 2) / math.sqrt(d)
        future = torch.ones(length, length, dtype=torch.bool).triu(1)
        attended = scores.masked_fill(future, -math.inf).softmax(-1) @ v
        attended = attended.transpose(0, 1).reshape(length, -1)
        x = x + F.linear(attended, weights[f"{block}.self_attn.o_proj.weight"])
        y = norm(x, f"{block}.post_attention_layernorm.weight")
        gate = F.silu(F.linear(y, weights[f"{block}.mlp.gate_proj.weight"]))
        up = F.linear(y, weights[f"{block}.mlp.up_proj.weight"])
        x = x + F.linear(gate * up, weights[f"{block}.mlp.down_proj.weight"])
    tied = model.tied_embeddings
    head = weights["model.embed_tokens.weight" if tied else "lm_head.weight"]
    return F.linear(norm(x, "model.norm.weight"), head)


@pytest.fixture(name="plain_logits")
def _plain_logits():
    return plain_logits


@pytest.fixture
def task():
    return Countdown()


@pytest.fixture(params=MODELS.values(), ids=MODELS.keys())
def any_model(request):
    return request.param


@pytest.fixture
def model():
    return MODELS["grouped"]


@pytest.fixture
def make_weights(task):
    """Random weights, norms and biases too, whose rollouts are of every length."""

    def make(model, seed=0):
        generator = torch.Generator().manual_seed(seed)
        weights = initial_weights(model, task.vocabulary_size, generator)
        for weight in weights.values():
            if weight.ndim == 1:
                weight += 0.3 * torch.randn(weight.shape, generator=generator)
        weights["model.norm.weight"] *= 0.3
        return weights

    return make


@pytest.fixture
def problems(task):
    """Prompts of every length, some of them alike."""
    some = list(task.problems(Split.TRAIN))[:: len(task.problems(Split.TRAIN)) // 9]
    return [*some, some[0], some[-1]]


@pytest.fixture
def prompts(task, problems):
    return encode([problem.prompt for problem in problems], task)


@pytest.fixture
def completions(task, prompts):
    """Random completions that often begin alike: owner, tokens and lengths."""

    def make(rows, seed=0):
        rng = np.random.default_rng(seed)
        owner = np.sort(rng.integers(len(prompts.lengths), size=rows))
        tokens = rng.integers(3, size=(rows, task.max_completion_length))
        lengths = rng.integers(1, task.max_completion_length + 1, size=rows)
        return owner, tokens, lengths

    return make


@dataclass(kw_only=True)
class Witness(Clipped):
    """Remembers what it is given."""

    name: ClassVar[str] = "witness"

    def __post_init__(self):
        super().__post_init__()
        self.seen = []

    def loss(self, inputs):
        self.seen.append(inputs)
        return super().loss(inputs)
