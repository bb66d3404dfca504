"""Audition: what some updates by an estimator do to a model's answers, without a training.

Every candidate updates the same weights with the same rollouts, in steps of the same length. Then
the log-probabilities of rollouts of other prompts say what has changed (`statistics.reweighting`).
Nothing is generated.
"""

from __future__ import annotations

import copy
import itertools
import json
import math
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from torch import Tensor

from advsweep.backends.randomness import Stream, numpy_generator
from advsweep.backends.trl.config import HfModel
from advsweep.backends.trl.loading import load_model, load_tokenizer, lora_config
from advsweep.backends.trl.padded_rows import TokenizedAnswers
from advsweep.backends.trl.sampling import (
    chosen_tokens,
    completion_statistics,
    log_policy,
    prompt_of,
)
from advsweep.errors import BatchError, TrainingError
from advsweep.estimators.baselines import RLOO
from advsweep.estimators.batch import COUNTERS, GroupBatch, nonzero_rows
from advsweep.logs.rollout_metrics import batch_of
from advsweep.logs.rollout_records import INPUTS, RolloutGroup, RolloutStep
from advsweep.objectives.base import Choice, LossInputs
from advsweep.objectives.clipped import Clipped
from advsweep.objectives.parts import choose_for_parts
from advsweep.packages import import_extra
from advsweep.statistics.reweighting import AnswerChanges, answer_changes

if TYPE_CHECKING:
    from jaxtyping import Bool, Float

    from advsweep.backends.base import Run
    from advsweep.backends.training_loop import TokenStatistics
    from advsweep.backends.trl.padded_rows import PaddedRows
    from advsweep.estimators import Estimator
    from advsweep.objectives.base import Objective
    from advsweep.tasks.base import Sampler

# What is known of every rollout, by the names of `GroupBatch`, but for rewards.
_COMPUTED = COUNTERS | {
    "lengths",
    "prompt_ids",
    "solve_rates",
    "token_entropy",
    "token_entropy_exact",
    "self_certainty",
}
# Numbers of the residual stream in one forward pass with a gradient.
_STATES = 1 << 20
# The k of the predicted pass@k: groups of a dump rarely tell of more.
_PASS_K = 8
# Rollouts in one forward pass without a gradient.
_ROWS = 512
# With which the search for the length of an update begins.
_FIRST_RATE = 1e-5


@dataclass(frozen=True, kw_only=True)
class Auditioned:
    """What a candidate's updates change.

    Attributes:
        answers: the answers to the held-out prompts.
        token_entropy: by held-out prompt, the change of the mean entropy per token, in nats, at
            the tokens of its rollouts.
        half_cosine: cosine between the sums of the gradients of every other update, each of half
            of the groups; 0 if one of them is 0.
    """

    answers: AnswerChanges
    token_entropy: Float[np.ndarray, " prompts"]
    half_cosine: float


@dataclass(frozen=True)
class _Share:
    """The groups of one update.

    Attributes:
        batch: the groups as an estimator sees them.
        log_probs: log π of the tokens before the updates.
        mask: the tokens that exist.
    """

    batch: GroupBatch
    tokens: TokenizedAnswers
    log_probs: Float[Tensor, "rollouts tokens"]
    mask: Bool[Tensor, "rollouts tokens"]


class Audition:
    """A model and rollouts, on which candidates are tried one after another.

    Half of the prompts, drawn at random, is for the updates; the other half is held out.

    Args:
        model: of transformers, in evaluation mode. The weights that have a gradient are updated,
            and restored after each candidate.
        groups: with completions.
        updates: K, each with an equal share of the groups; at least 2.
        kl: the length of an update is chosen so that all of those of RLOO change the answers'
            distribution by this KL(π ‖ π'), in nats.
        group_size: cut groups into groups of so many rollouts; None: the commonest size.
        temperature: at which the rollouts were sampled.
        success_at: rollouts with at least this reward are right; None: those with the larger of
            two rewards.

    Attributes:
        groups: the number of groups of the updates.
        rollouts: the number of held-out rollouts.
        solve_rates: share of right rollouts of each held-out prompt.
        left_out: the number of groups without completions, or with an unscorable rollout.
        step_norm: by how much an update moves the weights.
        surprisal, entropy: of the held-out rollouts, in nats per token: about equal if the model
            has sampled them.

    Raises:
        BatchError: there are too few rollouts, or it is not clear which are right.
    """

    def __init__(
        self,
        model: Any,
        tokenizer: Any,
        groups: Sequence[RolloutGroup],
        *,
        updates: int = 8,
        kl: float = 0.05,
        group_size: int | None = None,
        temperature: float = 1.0,
        success_at: float | None = None,
    ) -> None:
        self._model = model
        self._tokenizer = tokenizer
        self._temperature = temperature
        self._config = model.config.get_text_config()
        usable = [group for group in groups if _is_usable(group)]
        self.left_out = len(groups) - len(usable)
        random = np.random.default_rng(0)
        prompts = sorted({group.prompt for group in usable})
        held_out_prompts = {
            prompts[number] for number in random.permutation(len(prompts))[: len(prompts) // 2]
        }
        held_out = [group for group in usable if group.prompt in held_out_prompts]
        training: list[RolloutGroup] = []
        size = group_size or _commonest_size(usable)
        for group in usable:
            if group.prompt not in held_out_prompts:
                training += _cut(group, size)
        if not held_out_prompts or len(training) < 2:
            raise BatchError(
                "expected completions and rewards of at least two prompts, and two groups for the "
                f"updates, got {len(prompts)} and {len(training)}"
            )
        self._threshold = _threshold(usable, success_at)
        self.groups = len(training)
        order = random.permutation(len(training))
        parts = np.array_split(order, max(2, min(updates, len(training))))
        self._shares = [
            self._share([training[index] for index in part], number, len(parts))
            for number, part in enumerate(parts, 1)
        ]
        self._hold_out(held_out)
        self._weights = [weight for weight in model.parameters() if weight.requires_grad]
        self._start = [weight.detach().clone() for weight in self._weights]
        self._choose_length(kl)

    def _choose_length(self, kl: float) -> None:
        """Choose the length of an update with which RLOO's have the KL that is asked for."""
        weights = sum(weight.numel() for weight in self._weights)
        # AdamW's first step moves a weight by about the learning rate.
        self.step_norm = _FIRST_RATE * math.sqrt(weights)
        for _ in range(4):
            reached = float(self.audition(RLOO(), Clipped()).answers.kl.mean())
            # The KL of a short step grows with its square.
            factor = math.sqrt(kl / max(reached, 1e-12))
            self.step_norm *= min(max(factor, 0.01), 100.0)

    def _share(self, groups: Sequence[RolloutGroup], number: int, updates: int) -> _Share:
        tokens = self._tokens(groups)
        statistics = self._statistics(tokens, each_token=True)
        means = {
            "token_entropy": statistics.surprisal / statistics.lengths,
            "token_entropy_exact": statistics.entropy / statistics.lengths,
            "self_certainty": statistics.certainty / statistics.lengths,
        }
        complete = []
        start = 0
        for group in groups:
            rows = slice(start, start + len(group.rewards))
            start = rows.stop
            inputs = dict(group.inputs or {})
            inputs |= {name: values[rows].tolist() for name, values in means.items()}
            lengths = [len(completion) for completion in tokens.completions[rows]]
            complete.append(group._replace(lengths=lengths, inputs=inputs))
        batch = batch_of(RolloutStep(number, complete), updates)
        right = (batch.rewards >= self._threshold).float()
        log_probs = statistics.tokens["log_probs"]
        return _Share(
            batch=replace(batch, solve_rates=right.mean(dim=1)),
            tokens=tokens,
            log_probs=log_probs,
            mask=torch.arange(log_probs.shape[1]) < statistics.lengths[:, None],
        )

    def _hold_out(self, groups: Sequence[RolloutGroup]) -> None:
        prompts = np.array([group.prompt for group in groups for _ in group.rewards])
        self._of_prompts = [np.flatnonzero(prompts == prompt) for prompt in np.unique(prompts)]
        self._right = np.concatenate([group.rewards for group in groups]) >= self._threshold
        self._held_out = self._tokens(groups)
        self._before = self._statistics(self._held_out)
        self.rollouts = len(prompts)
        self.solve_rates = np.array([self._right[rows].mean() for rows in self._of_prompts])
        tokens = self._before.lengths.sum()
        self.surprisal = float(self._before.surprisal.sum() / tokens)
        self.entropy = float(self._before.entropy.sum() / tokens)

    def _tokens(self, groups: Sequence[RolloutGroup]) -> TokenizedAnswers:
        prompts: list[list[int]] = []
        for group in groups:
            prompt = _prompt_tokens(self._tokenizer, group.prompt)
            prompts += [prompt] * len(group.rewards)
        completions: list[list[int]] = []
        for group in groups:
            for text in group.completions or ():
                completions.append(_completion_tokens(self._tokenizer, text))
        tokens = TokenizedAnswers(prompts, completions, self._tokenizer.pad_token_id)
        # The last token is predicted, and needs no position.
        longest = tokens.longest - 1
        most = self._config.max_position_embeddings
        if longest > most:
            raise BatchError(f"expected at most {most:,} tokens with the prompt, got {longest:,}")
        return tokens

    def _statistics(self, tokens: TokenizedAnswers, *, each_token: bool = False) -> TokenStatistics:
        return completion_statistics(
            self._model,
            tokens,
            temperature=self._temperature,
            rows=_ROWS,
            each_token=each_token,
        )

    def lacking(self, estimator: Estimator) -> list[str]:
        """Return what an estimator needs that is not known of these rollouts."""
        batches = [share.batch for share in self._shares]
        available = set(_COMPUTED)
        for name in INPUTS:
            if all(getattr(batch, name) is not None for batch in batches):
                available.add(name)
        return sorted(estimator.needs - available)

    def audition(self, estimator: Estimator, objective: Objective) -> Auditioned:
        """Update the weights by a candidate, measure what has changed, and restore them.

        Args:
            estimator: sees the updates as the steps of a training; it is not changed.

        Raises:
            BatchError: the estimator refuses the rewards.
            TrainingError: no update has a gradient, or one is not finite.
        """
        estimator = copy.deepcopy(estimator)
        estimator.reset()
        objective = objective.for_completions(max(s.mask.shape[1] for s in self._shares))
        updates = [self._inputs(share, estimator, objective) for share in self._shares]
        # The length of a step is set after it.
        optimizer = torch.optim.AdamW(self._weights, lr=_FIRST_RATE, weight_decay=0.0)
        halves = [torch.zeros(1, device=self._model.device) for _ in range(2)]
        try:
            for number, (tokens, inputs) in enumerate(updates):
                if not tokens.prompts:
                    continue  # no rollout has a gradient
                gradient = self._gradient(objective, tokens, inputs)
                halves[number % 2] = halves[number % 2] + gradient
                if not gradient.isfinite().all():
                    raise TrainingError("expected finite gradients; try a smaller --kl")
                if gradient.any():
                    self._step(optimizer)
            if not any(half.any() for half in halves):
                raise TrainingError("no rollout has a gradient")
            after = self._statistics(self._held_out)
        finally:
            self._restore_weights()
        before = self._before
        change = ((after.entropy - before.entropy) / before.lengths).double().numpy()
        return Auditioned(
            answers=answer_changes(
                -before.surprisal.double().numpy(),
                -after.surprisal.double().numpy(),
                self._right,
                self._of_prompts,
                _PASS_K,
            ),
            token_entropy=np.array([change[rows].mean() for rows in self._of_prompts]),
            half_cosine=torch.cosine_similarity(halves[0], halves[1], dim=0).item(),
        )

    def _restore_weights(self) -> None:
        with torch.no_grad():
            for weight, start in zip(self._weights, self._start, strict=True):
                weight.copy_(start)
                weight.grad = None

    def _inputs(
        self, share: _Share, estimator: Estimator, objective: Objective
    ) -> tuple[TokenizedAnswers, LossInputs]:
        """Return the rollouts that have a gradient, and what a loss reads of them."""
        advantages = estimator.compute(share.batch)
        values = advantages.values.flatten(0, 1)
        keep = advantages.keep.flatten()
        used = keep & nonzero_rows(values) if objective.skips_exactly else keep
        rows = used.nonzero()[:, 0]
        old = share.log_probs[rows]
        return share.tokens.pick(rows.tolist()), LossInputs(
            log_probs=old,
            old_log_probs=old,
            completion_mask=share.mask[rows],
            advantages=values[rows],
            rollouts=int(advantages.in_denominators.sum()),
            tokens=int(share.mask[keep].sum()),
            reference_log_probs=old if objective.needs_reference else None,
            sampler_log_probs=old if objective.needs_sampler else None,
        )

    def _gradient(
        self, objective: Objective, tokens: TokenizedAnswers, inputs: LossInputs
    ) -> Float[Tensor, " weights"]:
        """Return the gradient of an update's loss; the weights have it too."""
        for weight in self._weights:
            weight.grad = torch.zeros_like(weight)
        rows = max(1, _STATES // (self._config.hidden_size * tokens.longest))
        batches = list(tokens.batches(self._model, rows))

        def parts() -> Iterator[LossInputs]:
            start = 0
            for padded in batches:
                log_p = log_policy(self._model, padded, self._temperature)
                entropies = None
                if objective.needs_entropy:
                    entropies = -(log_p.exp() * log_p).sum(dim=-1)
                batch_rows = slice(start, start + len(padded.ids))
                start = batch_rows.stop
                part = _part(inputs, batch_rows, padded, parts=len(batches))
                chosen = chosen_tokens(log_p, padded.ids)
                yield replace(part, log_probs=chosen, entropies=entropies)

        choices: list[Choice | None] = [None] * len(batches)
        if objective.chooses and len(batches) > 1:
            with torch.no_grad():
                choices = [*choose_for_parts(objective, list(parts()))]
        for part, choice in zip(parts(), choices, strict=True):
            loss = objective.loss(replace(part, choice=choice)).loss
            torch.autograd.backward(loss / len(batches))
        return torch.cat([weight.grad.flatten() for weight in self._weights])

    def _step(self, optimizer: torch.optim.Optimizer) -> None:
        """Move the weights in the optimizer's direction, by `step_norm`."""
        before = [weight.detach().clone() for weight in self._weights]
        optimizer.step()
        with torch.no_grad():
            pairs = list(zip(self._weights, before, strict=True))
            norms = torch.stack([(weight - old).norm() for weight, old in pairs])
            factor = self.step_norm / norms.norm().item()
            for weight, old in pairs:
                weight.copy_(old + factor * (weight - old))


def open_model(path: str, lora_rank: int = 0) -> tuple[Any, Any]:
    """Return a model of transformers, with an adapter if it has a rank, and its tokenizer.

    Raises:
        ConfigError: it cannot be loaded.
    """
    described = HfModel(path=path, lora_rank=lora_rank)
    tokenizer = load_tokenizer(described)
    model = load_model(described)
    if lora_rank:
        peft = import_extra("peft", "trl", "a LoRA adapter")
        model = peft.get_peft_model(model, lora_config(described))
    return model, tokenizer


def sample_rollouts(
    run: Run, sampler: Sampler, tokenizer: Any, *, prompts: int, rollouts: int
) -> list[RolloutGroup]:
    """Sample rollouts for a run's training problems; rewards are verdicts.

    Args:
        sampler: of the run's weights.
        tokenizer: of the run's model, which decides on the form of prompts.
        prompts: most prompts; a problem that is drawn again counts once.
        rollouts: of each prompt.
    """
    drawn = run.task.draw(prompts, numpy_generator(run.seed, Stream.PROMPTS))
    problems = list({problem.id: problem for problem in drawn}.values())
    texts = sampler.sample(
        problems, rollouts, temperature=run.generation.temperature, seed=run.seed
    ).texts
    repeated = [problem for problem in problems for _ in range(rollouts)]
    verdicts = run.task.score(repeated, list(itertools.chain.from_iterable(texts)))
    model = run.model if isinstance(run.model, HfModel) else HfModel()
    groups = []
    rewards = verdicts.reshape(-1, rollouts).tolist()
    for problem, completions, of_group in zip(problems, texts, rewards, strict=True):
        prompt = prompt_of(problem, model, tokenizer)
        text = prompt if isinstance(prompt, str) else json.dumps(prompt)
        groups.append(RolloutGroup(text, of_group, completions=list(completions)))
    return groups


def _part(inputs: LossInputs, rows: slice, padded: PaddedRows, *, parts: int) -> LossInputs:
    """Return one of the parts in which a loss is computed.

    Args:
        padded: the tokens of these rows, whose width and device the part gets.
    """
    of_rows: dict[str, Any] = {}
    for name, value in vars(inputs).items():
        if isinstance(value, Tensor):
            value = value[rows].to(padded.ids.device)
            of_rows[name] = value if value.ndim == 1 else value[:, : padded.tokens]
    return replace(
        inputs,
        **of_rows,
        rollouts=inputs.rollouts / parts,
        tokens=inputs.tokens / parts,
        parts=parts,
    )


def _is_usable(group: RolloutGroup) -> bool:
    """Whether a group has completions, and each of them a reward."""
    return bool(group.completions) and not any(map(math.isnan, group.rewards))


def _commonest_size(groups: Sequence[RolloutGroup]) -> int:
    """Return the size that most groups have; 0 without a group."""
    sizes = Counter(len(group.rewards) for group in groups)
    return max(sizes, key=sizes.__getitem__, default=0)


def _threshold(groups: Sequence[RolloutGroup], success_at: float | None) -> float:
    """Return the least reward of a right rollout."""
    if success_at is not None:
        return success_at
    values = sorted({reward for group in groups for reward in group.rewards})
    if len(values) == 1:
        raise BatchError(f"expected right and wrong rollouts, got the reward {values[0]:g} alone")
    if len(values) > 2:
        raise BatchError(
            f"expected rewards of two values, got {len(values)}; --success-at REWARD says which "
            "rollouts are right"
        )
    return values[1]


def _cut(group: RolloutGroup, size: int) -> list[RolloutGroup]:
    """Return a group in pieces of a size, without the rest."""
    inputs = group.inputs or {}
    completions = group.completions or []
    pieces = [slice(end - size, end) for end in range(size, len(group.rewards) + 1, size)]
    return [
        group._replace(
            rewards=group.rewards[piece],
            completions=completions[piece],
            inputs={name: numbers[piece] for name, numbers in inputs.items()},
        )
        for piece in pieces
    ]


def _conversation(text: str) -> list[dict[str, Any]] | None:
    """Return the messages of a conversation, which dumps have as JSON; None of a plain text."""
    if not text.startswith("["):
        return None
    try:
        messages = json.loads(text)
    except (ValueError, RecursionError):
        return None
    is_one = all(isinstance(m, dict) and isinstance(m.get("content"), str) for m in messages)
    return messages if messages and is_one else None


def _prompt_tokens(tokenizer: Any, text: str) -> list[int]:
    messages = _conversation(text)
    if messages is None:
        tokens: list[int] = tokenizer(text=text)["input_ids"]
    elif tokenizer.chat_template is None:
        raise BatchError("expected prompts of plain text, as the model has no chat template")
    else:
        tokens = tokenizer.apply_chat_template(
            messages, add_generation_prompt=True, return_dict=True
        )["input_ids"]
    if not tokens:
        raise BatchError("expected prompts in the model's vocabulary, got one without a token")
    return tokens


def _completion_tokens(tokenizer: Any, text: str) -> list[int]:
    """Return the tokens of a completion with an end mark, which dumps leave out."""
    messages = _conversation(text)
    answer = text if messages is None else messages[-1]["content"]
    tokens: list[int] = tokenizer(text=answer, add_special_tokens=False)["input_ids"]
    return [*tokens, tokenizer.eos_token_id]
