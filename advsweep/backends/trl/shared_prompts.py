"""Passes and generation that compute a prompt once for all of its completions.

TRL computes the prompt of every rollout, though a group has one. Where prompts are long and answers
short, most of a step's time goes there. Here a group is one row: its prompt, and behind it the
completions, each of which attends to the prompt and to itself.

    prompt (all but its last token) | last token, completion 1 | last token, completion 2 | ...

The numbers are those of the separate rows, to rounding.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from advsweep.backends.trl.positions import positions_of
from advsweep.errors import ConfigError

if TYPE_CHECKING:
    from jaxtyping import Float, Int

    from advsweep.backends.trl.padded_rows import Padded, PaddedRows

# The implementations that take a mask of each pair of tokens.
_ATTENTIONS = ("sdpa", "eager")


def check_attention(model: Any) -> None:
    """Refuse a model whose layers do not attend by such a mask.

    Raises:
        ConfigError: says what to set.
    """
    config = model.config.get_text_config()
    kinds = {*(getattr(config, "layer_types", None) or ["full_attention"])}
    if config._attn_implementation not in _ATTENTIONS or kinds != {"full_attention"}:
        attention = ", ".join(sorted(kinds - {"full_attention"})) or config._attn_implementation
        raise ConfigError(
            f"backend.share_prompts: expected a model with full attention in all layers, by "
            f"{' or '.join(_ATTENTIONS)}, got {attention}; set backend.share_prompts=false"
        )


@dataclass(frozen=True)
class Packed:
    """Rows with the same prompt as one row.

    Attributes:
        attention: what is added to the attention's scores: 0 or the smallest number.
        positions: of each token in its own completion.
        behind: tokens of a row behind its prompt.
        predecessors: number of the token that precedes each token of a completion, among the
            tokens behind the prompts of all rows.
    """

    ids: Int[Tensor, "prompts packed"]
    attention: Float[Tensor, "prompts 1 packed packed"]
    positions: Int[Tensor, "prompts packed"]
    behind: int
    predecessors: Int[Tensor, "rows tokens"]


def pack(padded: PaddedRows, dtype: torch.dtype) -> Packed:
    """Pack rows of prompts with completions."""
    ids, mask, tokens = padded
    start = ids.shape[1] - tokens
    both = torch.cat((ids[:, :start], mask[:, :start]), dim=1)
    prompts, row = torch.unique(both, dim=0, return_inverse=True)
    count = len(prompts)
    rows = len(ids)
    device = ids.device
    # The number of each row among those of its prompt.
    members = torch.bincount(row, minlength=count)
    order = row.argsort(stable=True)
    slot = torch.empty_like(row)
    slot[order] = torch.arange(rows, device=device) - (members.cumsum(0) - members)[row[order]]
    slots = int(members.max())
    width = tokens + 1

    completions = ids.new_zeros(count, slots, width)
    there = mask.new_zeros(count, slots, width)
    completions[row, slot] = ids[:, start - 1 :]
    there[row, slot] = torch.cat((torch.ones_like(mask[:, :1]), mask[:, start:]), dim=1)
    before = prompts[:, start:]
    packed = torch.cat((prompts[:, : start - 1], completions.flatten(1)), dim=1)
    valid = torch.cat((before[:, :-1], there.flatten(1)), dim=1).bool()
    last = before.sum(dim=1, keepdim=True) - 1
    steps = torch.arange(width, device=device).repeat(slots)
    positions = torch.cat((positions_of(before)[:, :-1], last + steps), dim=1)

    of_slot = torch.arange(1, slots + 1, device=device).repeat_interleave(width)
    owner = torch.cat((of_slot.new_zeros(start - 1), of_slot))
    column = torch.arange(len(owner), device=device)
    sees = ((owner == 0) | (owner == owner[:, None])) & (column <= column[:, None])
    # Padding sees itself, as the softmax of nothing is NaN.
    allowed = (sees & valid[:, None, :]) | (column == column[:, None])
    attention = torch.zeros(allowed.shape, dtype=dtype, device=device)
    attention.masked_fill_(~allowed, torch.finfo(dtype).min)
    first = (row * slots + slot) * width
    predecessors = first[:, None] + torch.arange(tokens, device=device)
    return Packed(packed, attention[:, None], positions, slots * width, predecessors)


def shared_pass(
    model: Any, padded: PaddedRows, temperature: float, *, entropies: bool
) -> tuple[Float[Tensor, "rows tokens"], Float[Tensor, "rows tokens"] | None]:
    """Return log π of each token of the completions and, if asked for, the entropies in nats."""
    packed = pack(padded, model.dtype)
    logits = model(
        input_ids=packed.ids,
        attention_mask=packed.attention,
        position_ids=packed.positions,
        logits_to_keep=packed.behind,
        use_cache=False,
    ).logits
    chosen = logits.flatten(0, 1)[packed.predecessors].float() / temperature
    log_policy = torch.log_softmax(chosen, dim=-1)
    completions = padded.ids[:, -padded.tokens :]
    log_probs = log_policy.gather(2, completions[:, :, None])[:, :, 0]
    if not entropies:
        return log_probs, None
    # With its gradient, which `torch.special.entr` does not have where π is 0.
    return log_probs, -(log_policy.exp() * log_policy).sum(dim=-1)


def shared_generate(
    model: Any,
    generate: Callable[..., Tensor],
    *,
    input_ids: Padded,
    attention_mask: Padded,
    **named: Any,
) -> Tensor:
    """Generate like a model's `generate`, from keys and values that are computed once a prompt."""
    whole = torch.cat((input_ids, attention_mask), dim=1)
    prompts, row = torch.unique(whole, dim=0, return_inverse=True)
    ids, mask = prompts.chunk(2, dim=1)
    # The last token is left to `generate`, which needs one to begin with.
    output = model(
        input_ids=ids[:, :-1],
        attention_mask=mask[:, :-1],
        position_ids=positions_of(mask)[:, :-1],
        use_cache=True,
        logits_to_keep=1,
    )
    # Releases of transformers have either name.
    name = next(name for name in ("cache", "past_key_values") if name in output)
    output[name].batch_select_indices(row)
    return generate(
        input_ids=input_ids, attention_mask=attention_mask, **{name: output[name]}, **named
    )
