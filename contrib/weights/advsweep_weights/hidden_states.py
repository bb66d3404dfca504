"""Hidden states of correct and failed rollouts: how far tokens of each agree.

The state h that predicts a token splits into a part along one direction u₁ that all share and
the rest, h⊥ = h - (h·u₁) u₁. With v = onehot(token) - π,

    ρ = mean cosine of h⊥ over all pairs of tokens of a group
    R = (1/N) Σ v h⊥ᵀ over the N tokens of a group

R is what is left of the gradient of log π at the output head. Were the tokens of both groups
alike and independent, ‖R_failed‖ / ‖R_correct‖ would be √(N_correct / N_failed).

Source: FADE (arXiv:2607.01490), sec. 15.1-15.2. Departures: where one sentence divides R by the
number of all tokens, its equation, which is used here, divides by those of the group.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from enum import Enum
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import torch

from advsweep.backends.randomness import Stream, numpy_generator
from advsweep.errors import ConfigError
from advsweep.estimators import GroupBatch

if TYPE_CHECKING:
    from jaxtyping import Bool, Float, Int
    from torch import Tensor

    from advsweep_weights.run_weights import RunWeights

_CHUNK = 1 << 24
"""Number of logits that are computed at once."""
_BATCH = 16
"""Rollouts of one forward pass."""
_TOLERANCE = 0.05
"""Relative difference allowed between a model's logits and those computed from its states."""


class Direction(Enum):
    """The matrix whose top right singular vector is u₁.

    `HIDDEN`: the stacked hidden states (the paper's footnote). `GRADIENT`: the batch gradient at
    the output head, Σ A v hᵀ (the paper's text). `WEIGHTS`: the change of the output head by the
    training.
    """

    HIDDEN = "hidden"
    GRADIENT = "gradient"
    WEIGHTS = "weights"


@dataclass(frozen=True, kw_only=True)
class SampledTokens:
    """The tokens of some rollouts, and the states that predicted them.

    Attributes:
        hidden: inputs of the output head, after the last norm.
        tokens: token ids.
        owner: the rollout of each token.
        verdicts: the verdict on each rollout: 1 for a success, NaN for no verdict.
        advantages: the advantage of each rollout; None unless `GRADIENT` needs it.
        head: the output layer; logits are `hidden @ head.T`.
        temperature: the divisor of the logits.
    """

    hidden: Float[Tensor, "tokens width"]
    tokens: Int[Tensor, " tokens"]
    owner: Int[Tensor, " tokens"]
    verdicts: Float[Tensor, " rollouts"]
    advantages: Float[Tensor, " rollouts"] | None
    head: Float[Tensor, "vocabulary width"]
    temperature: float


@dataclass(frozen=True, kw_only=True)
class GroupStates:
    """The agreement among the tokens of correct, or of failed, rollouts."""

    rollouts: int
    tokens: int
    rho: float
    residual: float


@dataclass(frozen=True, kw_only=True)
class HiddenStates:
    """The comparison of correct with failed rollouts.

    Attributes:
        unscorable: number of rollouts without a verdict, which are in neither group.
        along: share of Σ ‖h‖² that lies along u₁.
        residual_ratio: ‖R_failed‖ / ‖R_correct‖; NaN if a group is empty.
        clt_baseline: the expected ratio for identical, independent tokens.
    """

    correct: GroupStates
    failed: GroupStates
    unscorable: int
    along: float
    residual_ratio: float
    clt_baseline: float


def analyse_hidden_states(
    sampled: SampledTokens,
    direction: Direction = Direction.HIDDEN,
    *,
    changed: Float[Tensor, " width"] | None = None,
) -> HiddenStates:
    """Compare how the tokens of correct and of failed rollouts agree beyond u₁.

    Args:
        direction: the matrix from which u₁ is computed.
        changed: the top right singular vector of the head's change, for `WEIGHTS`.

    Raises:
        ConfigError: there are no tokens, or the matrix is zero.
    """
    if not len(sampled.tokens):
        raise ConfigError("expected rollouts with tokens, got none")
    hidden = sampled.hidden
    if direction is Direction.WEIGHTS:
        assert changed is not None
        first = changed
    else:
        gram = hidden.double().T @ hidden.double()
        if direction is Direction.GRADIENT:
            gram = _gradient_gram(sampled)
        first = torch.linalg.eigh(gram).eigenvectors[:, -1] if gram.any() else gram[0]
    if not first.any():
        raise ConfigError(
            f"--direction {direction.value}: expected a matrix with a direction, got zeros; take "
            "another one"
        )
    first = first.to(hidden)
    lengths = hidden @ first
    rest = hidden - lengths[:, None] * first
    verdicts = sampled.verdicts
    is_correct, is_failed = verdicts == 1, (verdicts != 1) & ~verdicts.isnan()
    members = [kept[sampled.owner] for kept in (is_correct, is_failed)]
    residuals = _residual_norms(sampled, rest, members)
    correct, failed = (
        GroupStates(
            rollouts=int(kept.sum()),
            tokens=int(member.sum()),
            rho=mean_cosine(rest[member]),
            residual=residual,
        )
        for kept, member, residual in zip((is_correct, is_failed), members, residuals, strict=True)
    )
    both = correct.tokens and failed.tokens
    return HiddenStates(
        correct=correct,
        failed=failed,
        unscorable=int(verdicts.isnan().sum()),
        along=(lengths.double().square().sum() / hidden.double().square().sum()).item(),
        residual_ratio=failed.residual / correct.residual
        if both and correct.residual
        else math.nan,
        clt_baseline=math.sqrt(correct.tokens / failed.tokens) if both else math.nan,
    )


def mean_cosine(vectors: Float[Tensor, "tokens width"]) -> float:
    """Return the mean cosine over pairs of nonzero vectors: (‖Σ v/|v|‖² - n) / (n (n-1))."""
    vectors = vectors.double()
    norms = vectors.norm(dim=1)
    # A vector along u₁ leaves only rounding error after the projection; its direction is noise.
    kept = norms > 1e-6 * norms.max() if len(norms) else norms.bool()
    count = int(kept.sum())
    if count < 2:
        return math.nan
    summed = (vectors[kept] / norms[kept, None]).sum(dim=0)
    energy: float = summed.square().sum().item()
    return (energy - count) / (count * (count - 1))


def _errors(sampled: SampledTokens) -> Iterator[Float[Tensor, "tokens some"]]:
    """Yield onehot(token) - π for consecutive parts of the vocabulary."""
    hidden, head = sampled.hidden, sampled.head
    size = max(1, _CHUNK // len(hidden))

    def logits(start: int) -> Tensor:
        return hidden @ head[start : start + size].to(hidden).T / sampled.temperature

    starts = range(0, len(head), size)
    total = torch.stack([logits(start).logsumexp(dim=1) for start in starts]).logsumexp(dim=0)
    for start in starts:
        errors = -(logits(start) - total[:, None]).exp()
        here = (sampled.tokens >= start) & (sampled.tokens < start + size)
        places = here.nonzero()[:, 0]
        errors[places, sampled.tokens[places] - start] += 1
        yield errors


def _residual_norms(
    sampled: SampledTokens,
    rest: Float[Tensor, "tokens width"],
    members: Sequence[Bool[Tensor, " tokens"]],
) -> list[float]:
    """Return ‖R‖_F of each group of tokens; NaN of an empty one."""
    energies = [0.0] * len(members)
    for errors in _errors(sampled):
        for number, member in enumerate(members):
            energies[number] += (errors[member].T @ rest[member]).double().square().sum().item()
    counts = [int(member.sum()) for member in members]
    return [
        math.sqrt(energy) / count if count else math.nan
        for energy, count in zip(energies, counts, strict=True)
    ]


def _gradient_gram(sampled: SampledTokens) -> Float[Tensor, "width width"]:
    """Return GᵀG of the batch gradient G = Σ A v hᵀ."""
    assert sampled.advantages is not None
    weighted = sampled.hidden * sampled.advantages[sampled.owner].to(sampled.hidden)[:, None]
    gram = torch.zeros(weighted.shape[1], weighted.shape[1]).to(weighted.device, torch.float64)
    for errors in _errors(sampled):
        part = (errors.T @ weighted).double()
        gram += part.T @ part
    return gram


@torch.no_grad()
def sample_tokens(
    weights: RunWeights, exported: Path, prompts: int, *, advantages: bool
) -> SampledTokens:
    """Sample rollouts of the prompts of the next step, and compute the states with transformers.

    Answers are tokenised again; one shorter than the limit gets its end mark back.

    Args:
        exported: a folder with the weights.
        advantages: whether the estimator weighs the rollouts.

    Raises:
        ConfigError: transformers is missing, or the estimator needs more than rewards.
    """
    try:
        from transformers import AutoModelForCausalLM, AutoTokenizer
    except ImportError as error:
        raise ConfigError(
            "hidden states need transformers: pip install 'advsweep-weights[hidden]'"
        ) from error
    run = weights.run
    step = weights.step
    estimator = run.estimator
    if advantages and (estimator.needs or estimator.stateful or estimator.per_token):
        raise ConfigError(
            f"--direction gradient: expected an estimator of the rewards alone, without a memory, "
            f"got '{estimator.name}'; take hidden or weights"
        )
    run.task.check_consent()
    problems = list(run.task.draw(prompts, numpy_generator(run.seed, Stream.PROMPTS, step + 1)))
    temperature = run.generation.temperature
    drawn = run.backend.sampler(run, weights.record.directory, step).sample(
        problems, run.group_size, temperature=temperature, seed=run.seed
    )
    repeated = [problem for problem in problems for _ in range(run.group_size)]
    texts = [text for answers in drawn.texts for text in answers]
    tokenizer = AutoTokenizer.from_pretrained(exported)
    completions = [tokenizer(text, add_special_tokens=False)["input_ids"] for text in texts]
    limit = run.backend.completion_tokens(run)
    for tokens in completions:
        if len(tokens) < limit:
            tokens.append(tokenizer.eos_token_id)
    chat = tokenizer.chat_template is not None and run.model.plain().get("prompt") != "text"
    inputs = [
        tokenizer.apply_chat_template(
            problem.messages, add_generation_prompt=True, return_dict=True
        )["input_ids"]
        if chat
        else tokenizer(problem.text)["input_ids"]
        for problem in repeated
    ]
    device = "cuda" if torch.cuda.is_available() else "cpu"
    model = AutoModelForCausalLM.from_pretrained(exported, dtype=torch.float32).to(device).eval()
    hidden = _states(model, inputs, completions)
    lengths = np.array([len(tokens) for tokens in completions], dtype=np.float64)
    verdicts = run.task.score(repeated, texts)
    values = None
    if advantages:
        rewards = torch.from_numpy(run.task.rewards(texts, verdicts, lengths)).float()
        grouped = rewards.view(prompts, -1)
        batch = GroupBatch(rewards=grouped.nan_to_num(0.0), mask=~grouped.isnan())
        values = estimator.compute(batch).values.flatten().to(device)
    return SampledTokens(
        hidden=hidden,
        tokens=torch.tensor([token for tokens in completions for token in tokens]).to(device),
        owner=torch.arange(len(texts))
        .repeat_interleave(torch.from_numpy(lengths).long())
        .to(device),
        verdicts=torch.from_numpy(verdicts).float().to(device),
        advantages=values,
        head=model.get_output_embeddings().weight,
        temperature=temperature,
    )


def _states(
    model: Any, prompts: Sequence[Sequence[int]], completions: Sequence[Sequence[int]]
) -> Float[Tensor, "tokens width"]:
    """Return the last normalised state that predicts each token, rollout after rollout.

    Raises:
        ConfigError: the model's logits are not its output layer applied to these states.
    """
    found = []
    for start in range(0, len(prompts), _BATCH):
        pairs = list(zip(prompts, completions, strict=True))[start : start + _BATCH]
        rows = [torch.tensor([*prompt, *completion]) for prompt, completion in pairs]
        ids = torch.nn.utils.rnn.pad_sequence(rows, batch_first=True).to(model.device)
        mask = torch.nn.utils.rnn.pad_sequence([torch.ones_like(row) for row in rows], True)
        given = {"input_ids": ids, "attention_mask": mask.to(model.device), "use_cache": False}
        states = getattr(model, model.base_model_prefix)(**given).last_hidden_state
        if start == 0:
            logits = model(**given).logits
            ours = states @ model.get_output_embeddings().weight.T
            if (logits - ours).abs().max() > _TOLERANCE * max(1.0, logits.abs().max().item()):
                raise ConfigError(
                    "expected a model whose logits are its output layer applied to its last "
                    f"states, got {model.config.model_type}"
                )
        for row, (prompt, completion) in zip(states, pairs, strict=True):
            first = len(prompt) - 1
            found.append(row[first : first + len(completion)])
    return torch.cat(found)
