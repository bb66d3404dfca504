"""Checkpoints, and analyses of a run's weights, as they go into the store and come out of it."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import numpy as np
    from jaxtyping import Float


@dataclass(frozen=True, kw_only=True)
class CheckpointRecord:
    """A checkpoint of a run.

    Attributes:
        step: number of training steps of its weights.
    """

    step: int
    path: Path
    created: datetime


@dataclass(frozen=True, kw_only=True)
class NewAnalysis:
    """An analysis of a run's weights to add.

    Attributes:
        kind: what is analysed, `weights` or `hidden_states`.
        step: number of training steps of the weights.
        settings: everything that can change its result, in JSON types.
        result: the result in JSON types; NaN and infinities are stored as null.
        directions: concatenated unit vectors; None without any.
    """

    kind: str
    step: int
    settings: Mapping[str, Any]
    result: Mapping[str, Any]
    directions: Float[np.ndarray, " features"] | None = None

    @property
    def identity(self) -> str:
        """sha256, in hex, of the kind, the step and the settings; unique within a run."""
        content = json.dumps([self.kind, self.step, dict(self.settings)], sort_keys=True)
        return hashlib.sha256(content.encode()).hexdigest()


@dataclass(frozen=True, kw_only=True)
class AnalysisRecord(NewAnalysis):
    """A stored analysis of a run's weights."""

    run_id: int
    created: datetime
