"""The states with which a transformers model predicted the tokens of its rollouts."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from torch import Tensor

from advsweep.backends.randomness import Stream, numpy_generator, torch_seed
from advsweep.backends.training_loop import reads_answers
from advsweep.backends.trl.sampling import encode
from advsweep.backends.trl.source import group_batch
from advsweep.backends.trl.token_statistics import Signals
from advsweep.diagnostics.hidden_states import SampledTokens
from advsweep.errors import ConfigError

if TYPE_CHECKING:
    from jaxtyping import Float, Int
    from torch import Tensor

    from advsweep.backends.base import Run
    from advsweep.backends.trl.sampling import ModelSampler
    from advsweep.estimators import Estimator

_TOLERANCE = 0.05
"""Logits, in nats, by which a model may differ from its head applied to its last states."""


@torch.no_grad()
def sampled_tokens(
    run: Run, sampler: ModelSampler, step: int, prompts: int, estimator: Estimator | None
) -> SampledTokens:
    """Rollouts of the prompts that a step would begin with; see `Backend.sampled_tokens`.

    They are sampled as training samples, but by one process and with transformers.

    Args:
        estimator: weighs them, which advances its memory; None: nobody does.
    """
    problems = list(run.task.draw(prompts, numpy_generator(run.seed, Stream.PROMPTS, step)))
    repeated = [problem for problem in problems for _ in range(run.group_size)]
    temperature = run.generation.temperature
    seed = torch_seed(run.seed, Stream.ROLLOUTS, step)
    completions, signals = sampler.draw(repeated, temperature, seed, cut=True)
    texts = sampler.tokenizer.batch_decode(completions, skip_special_tokens=True)
    outcomes = run.task.score(repeated, texts)
    lengths = np.array([len(tokens) for tokens in completions], dtype=np.float64)
    rewards = torch.from_numpy(run.task.rewards(texts, outcomes, lengths)).float()
    with sampler.opened() as model:
        hidden = _hidden(model, sampler, encode(repeated, sampler.model, sampler.tokenizer),
                         completions)  # fmt: skip
        head = model.get_output_embeddings().weight
    advantages = None
    if estimator is not None:
        grouped = rewards.view(prompts, -1)
        verdicts = torch.from_numpy(outcomes).view(grouped.shape)
        answered = None
        if reads_answers(run.estimator):
            answers = run.task.answers(repeated, texts)
            answered = torch.tensor([answer is not None for answer in answers])
            answered = answered.view(grouped.shape)
        batch = group_batch(run, problems, grouped, verdicts, signals, step, answered=answered)
        advantages = estimator.compute(batch).values.flatten().to(hidden.device)
    owner = torch.arange(len(completions)).repeat_interleave(torch.from_numpy(lengths).long())
    return SampledTokens(
        hidden=hidden,
        tokens=torch.tensor([token for tokens in completions for token in tokens]).to(
            hidden.device
        ),
        owner=owner.to(hidden.device),
        outcomes=torch.from_numpy(outcomes).float().to(hidden.device),
        advantages=advantages,
        head=head,
        temperature=temperature,
    )


def _hidden(
    model: Any,
    sampler: ModelSampler,
    prompts: Sequence[Sequence[int]],
    completions: Sequence[Sequence[int]],
) -> Float[Tensor, "tokens width"]:
    """The last states, after the last norm, that predict each token, one row after another."""
    inner = getattr(model, model.base_model_prefix)
    found = []
    for start in range(0, len(prompts), sampler.batch):
        some = slice(start, start + sampler.batch)
        rows = [[*p, *c] for p, c in zip(prompts[some], completions[some], strict=True)]
        inputs = sampler.tokenizer.pad(
            {"input_ids": rows}, padding_side="right", return_tensors="pt"
        ).to(model.device)
        given = {key: inputs[key] for key in ("input_ids", "attention_mask")}
        states = inner(**given, use_cache=False).last_hidden_state
        if start == 0:
            _check_head(model, given, states)
        for row, (prompt, completion) in enumerate(
            zip(prompts[some], completions[some], strict=True)
        ):
            first = len(prompt) - 1
            found.append(states[row, first : first + len(completion)].float())
    return torch.cat(found)


def _check_head(
    model: Any, given: dict[str, Tensor], states: Float[Tensor, "rows slots width"]
) -> None:
    """Refuses models whose logits are more than the head applied to the last states."""
    one = {key: value[:1] for key, value in given.items()}
    logits = model(**one, use_cache=False).logits[0, -1].float()
    ours = states[0, -1] @ model.get_output_embeddings().weight.T
    apart = (logits - ours.float()).abs().max().item()
    if apart > _TOLERANCE * max(1.0, logits.abs().max().item()):
        raise ConfigError(
            f"model: expected one whose logits are its output layer applied to its last hidden "
            f"states, got {model.config.model_type}, which differs by {apart:.2g}"
        )


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
