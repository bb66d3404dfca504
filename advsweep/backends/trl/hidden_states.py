"""Rollouts of a transformers model, with the hidden states that predict their tokens."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from torch import Tensor

from advsweep.backends.randomness import Stream, numpy_generator, torch_seed
from advsweep.backends.training_loop import group_batch, reads_answers
from advsweep.backends.trl.sampling import encode
from advsweep.diagnostics.hidden_states import SampledTokens
from advsweep.errors import ConfigError

if TYPE_CHECKING:
    from jaxtyping import Float
    from torch import Tensor

    from advsweep.backends.base import Run
    from advsweep.backends.trl.sampling import ModelSampler
    from advsweep.estimators import Estimator

_TOLERANCE = 0.05
"""Relative difference allowed between a model's logits and those computed from its states."""


@torch.no_grad()
def sampled_tokens(
    run: Run, sampler: ModelSampler, step: int, prompts: int, estimator: Estimator | None
) -> SampledTokens:
    """Sample rollouts of the prompts that a step starts with; see `Backend.sampled_tokens`.

    The distribution is that of training, but one process samples, with transformers.

    Args:
        estimator: computes the advantages, which advances its memory; None: no advantages.
    """
    problems = list(run.task.draw(prompts, numpy_generator(run.seed, Stream.PROMPTS, step)))
    repeated = [problem for problem in problems for _ in range(run.group_size)]
    temperature = run.generation.temperature
    seed = torch_seed(run.seed, Stream.ROLLOUTS, step)
    completions, statistics = sampler.draw(repeated, temperature, seed, truncated=True)
    texts = sampler.tokenizer.batch_decode(completions, skip_special_tokens=True)
    outcomes = run.task.score(repeated, texts)
    lengths = np.array([len(tokens) for tokens in completions], dtype=np.float64)
    rewards = torch.from_numpy(run.task.rewards(texts, outcomes, lengths)).float()
    with sampler.opened() as model:
        prompt_ids = encode(repeated, sampler.model, sampler.tokenizer)
        hidden = _hidden(model, sampler, prompt_ids, completions)
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
        batch = group_batch(
            run, problems, grouped, verdicts, step, **statistics.of_training(), answered=answered
        )
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
    """Return the last normalised state that predicts each token, row after row."""
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
    """Refuse models whose logits are not the output layer applied to the last states."""
    one = {key: value[:1] for key, value in given.items()}
    logits = model(**one, use_cache=False).logits[0, -1].float()
    ours = states[0, -1] @ model.get_output_embeddings().weight.T
    apart = (logits - ours.float()).abs().max().item()
    if apart > _TOLERANCE * max(1.0, logits.abs().max().item()):
        raise ConfigError(
            f"model: expected one whose logits are its output layer applied to its last hidden "
            f"states, got {model.config.model_type}, which differs by {apart:.2g}"
        )
