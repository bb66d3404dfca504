"""Generators seeded by (seed, stream, step), so that resuming needs no generator state."""

from __future__ import annotations

from enum import IntEnum

import numpy as np
import torch


class Stream(IntEnum):
    """Uses of random numbers; no two uses share a sequence."""

    WEIGHTS = 0
    CORPUS = 1
    PROMPTS = 2
    ROLLOUTS = 3
    EVALUATION = 4
    REFERENCE = 5
    CONTROL = 6
    ENVIRONMENTS = 7


def numpy_generator(seed: int, stream: Stream, step: int = 0) -> np.random.Generator:
    return np.random.default_rng((seed, stream, step))


def torch_generator(seed: int, stream: Stream, step: int = 0) -> torch.Generator:
    return torch.Generator().manual_seed(torch_seed(seed, stream, step))


def torch_seed(seed: int, stream: Stream, step: int = 0, *part: int) -> int:
    """Return a seed for `torch.manual_seed`.

    Args:
        part: numbers of a part of a step that is drawn by itself, the last of them above 0.
    """
    (state,) = np.random.SeedSequence((seed, stream, step, *part)).generate_state(1, np.uint64)
    # torch takes signed 64-bit seeds.
    return int(state) >> 1
