"""Positions of tokens in rows that are padded on the left.

A model numbers the tokens of a row from its first column, padding included, unless it is given
their positions. `generate` gives them, TRL's pass of an update does not. That changes nothing but
rounding where only distances between tokens count (rotary embeddings), and the log-probabilities
of whole rows where the position itself is embedded (GPT-2, GPT-Neo, XGLM, BioGPT).
"""

from __future__ import annotations

import inspect
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from torch import Tensor

from advsweep.backends.trl.loading import without_adapter

if TYPE_CHECKING:
    from jaxtyping import Int

# Rotary embeddings whose frequencies depend on the length of a row, padding included.
_BY_LENGTH = frozenset({"dynamic", "longrope"})


def positions_of(mask: Int[Tensor, "rows width"]) -> Int[Tensor, "rows width"]:
    """Return the position of each token in its row, given a mask that is 0 at padding."""
    return (mask.cumsum(dim=1) - 1).clamp(min=0)


def needs_positions(model: Any) -> bool:
    """Whether padding on the left changes what a model computes unless it gets positions.

    Models that number tokens by the attention mask, or know no positions, take none.
    """
    whole = without_adapter(model)
    if "position_ids" not in inspect.signature(whole.forward).parameters:
        return False
    rotary = any("rotary" in type(module).__name__.lower() for module in whole.modules())
    return not rotary or not _BY_LENGTH.isdisjoint(_rotary_types(whole.config.get_text_config()))


def _rotary_types(config: Any) -> set[str]:
    """Return the kinds of rotary embeddings that a configuration names."""
    parameters = getattr(config, "rope_parameters", None) or {}
    nested = [value for value in parameters.values() if isinstance(value, dict)]
    return {str(kind.get("rope_type")) for kind in [parameters, *nested]}


def with_positions(model: Callable[..., Any]) -> Callable[..., Any]:
    """Return a function that calls a model with the positions that the attention mask gives."""

    def call(*, attention_mask: Int[Tensor, "rows width"], **inputs: Any) -> Any:
        return model(
            attention_mask=attention_mask, position_ids=positions_of(attention_mask), **inputs
        )

    return call
