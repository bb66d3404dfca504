"""Passes and generation that compute a prompt once for all of its completions.

TRL computes the prompt of every rollout, though a group has one. Where prompts are long and answers
short, most of a step's time goes there. Here a group is one row: its prompt, and behind it the
completions, each of which attends to the prompt and to itself.

    prompt (all but its last token) | last token, completion 1 | last token, completion 2 | ...

The numbers are those of the separate rows, to rounding. `prompt_sharing` decides where it is done.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from advsweep.backends.trl.positions import positions_of

if TYPE_CHECKING:
    from jaxtyping import Float, Int

    from advsweep.backends.trl.padded_rows import Padded, PaddedRows


@dataclass(frozen=True)
class PromptGroups:
    """Rows of a pass by their prompts.

    Attributes:
        ids: the prompts that differ.
        mask: 0 at their padding, 1 elsewhere.
        prompt_of: number of the prompt of each row.
        slots: rows of the prompt that has the most.
        tokens: width of the completions.
    """

    ids: Int[Tensor, "prompts width"]
    mask: Int[Tensor, "prompts width"]
    prompt_of: Int[Tensor, " rows"]
    slots: int
    tokens: int

    @classmethod
    def of(cls, padded: PaddedRows) -> PromptGroups:
        """Find the rows with equal prompts."""
        width = padded.ids.shape[1] - padded.tokens
        whole = torch.cat((padded.ids[:, :width], padded.mask[:, :width]), dim=1)
        prompts, prompt_of = torch.unique(whole, dim=0, return_inverse=True)
        slots = int(torch.bincount(prompt_of).max())
        return cls(prompts[:, :width], prompts[:, width:], prompt_of, slots, padded.tokens)

    @property
    def rows(self) -> int:
        return len(self.prompt_of)

    @property
    def prompts(self) -> int:
        return len(self.ids)

    @property
    def prompt_width(self) -> int:
        return self.ids.shape[1]

    @property
    def packed_behind(self) -> int:
        """Tokens of a packed row behind its prompt: each completion, and the token before it."""
        return self.slots * (self.tokens + 1)

    @property
    def packed_width(self) -> int:
        """Tokens of a packed row."""
        return self.prompt_width - 1 + self.packed_behind


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


def pack(padded: PaddedRows, groups: PromptGroups, dtype: torch.dtype) -> Packed:
    """Pack rows of prompts with completions."""
    ids, mask, tokens = padded
    start = groups.prompt_width
    row = groups.prompt_of
    count = groups.prompts
    slots = groups.slots
    device = ids.device
    # The number of each row among those of its prompt.
    members = torch.bincount(row, minlength=count)
    order = row.argsort(stable=True)
    slot = torch.empty_like(row)
    ranks = torch.arange(groups.rows, device=device)
    slot[order] = ranks - (members.cumsum(0) - members)[row[order]]
    width = tokens + 1

    completions = ids.new_zeros(count, slots, width)
    there = mask.new_zeros(count, slots, width)
    completions[row, slot] = ids[:, start - 1 :]
    there[row, slot] = torch.cat((torch.ones_like(mask[:, :1]), mask[:, start:]), dim=1)
    before = groups.mask
    packed = torch.cat((groups.ids[:, :-1], completions.flatten(1)), dim=1)
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
    return Packed(packed, attention[:, None], positions, groups.packed_behind, predecessors)


def shared_pass(
    model: Any, padded: PaddedRows, groups: PromptGroups, *, temperature: float, entropies: bool
) -> tuple[Float[Tensor, "rows tokens"], Float[Tensor, "rows tokens"] | None]:
    """Return log π of each token of the completions and, if asked for, the entropies in nats."""
    # DistributedDataParallel, which has no type, wraps the model in updates of several processes.
    dtype = getattr(model, "module", model).dtype
    packed = pack(padded, groups, dtype)
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
