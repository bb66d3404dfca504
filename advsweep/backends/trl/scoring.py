"""What a model's distributions say of completions that something else has sampled."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from advsweep.backends.trl.signals import Signals

if TYPE_CHECKING:
    from jaxtyping import Float, Int

_LOGITS = 1 << 27
"""Most logits of one forward pass: half a GiB in float32."""


def score(
    model: Any,
    prompts: Sequence[Sequence[int]],
    completions: Sequence[Sequence[int]],
    *,
    temperature: float,
    pad_id: int,
    rows: int,
) -> Signals:
    """Sums over each completion's tokens, on the CPU.

    Args:
        rows: most completions of one forward pass.
    """
    longest = max(map(len, completions))
    size = max(1, min(rows, _LOGITS // (longest * model.config.get_text_config().vocab_size)))
    parts = []
    for start in range(0, len(prompts), size):
        some = slice(start, start + size)
        width, tokens = max(map(len, prompts[some])), max(map(len, completions[some]))
        ids = torch.full((len(prompts[some]), width + tokens), pad_id)
        mask = torch.zeros_like(ids)
        for row, (prompt, completion) in enumerate(
            zip(prompts[some], completions[some], strict=True)
        ):
            place = slice(width - len(prompt), width + len(completion))
            ids[row, place] = torch.tensor([*prompt, *completion])
            mask[row, place] = 1
        part = score_rows(
            model, ids.to(model.device), mask.to(model.device), tokens, temperature=temperature
        )
        parts.append(part.stacked().cpu())
    return Signals.unstacked(torch.cat(parts))


@torch.no_grad()
def score_rows(
    model: Any,
    ids: Int[Tensor, "rows width"],
    mask: Int[Tensor, "rows width"],
    tokens: int,
    *,
    temperature: float,
) -> Signals:
    """Sums over each row's completion.

    Args:
        ids: prompts padded on the left, completions on the right.
        mask: 1 where `ids` is no padding.
        tokens: places of the completions.
    """
    logits = model(
        input_ids=ids,
        attention_mask=mask,
        position_ids=(mask.cumsum(dim=1) - 1).clamp(min=0),
        logits_to_keep=tokens + 1,
        use_cache=False,
    ).logits[:, :-1]
    log_p = torch.log_softmax(logits.float() / temperature, dim=-1)
    generated = mask[:, -tokens:].bool()

    def summed(values: Float[Tensor, "rows tokens"]) -> Float[Tensor, " rows"]:
        return values.where(generated, 0.0).sum(dim=1)

    return Signals(
        lengths=generated.sum(dim=1).float(),
        surprisal=summed(-log_p.gather(2, ids[:, -tokens:, None])[:, :, 0]),
        entropy=summed(torch.special.entr(log_p.exp()).sum(dim=-1)),
        certainty=summed(-log_p.mean(dim=-1) - math.log(log_p.shape[-1])),
    )
