"""A trainer that samples rollouts and evaluations with vLLM."""

from __future__ import annotations

import contextlib
import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor
from trl import GRPOTrainer

from advsweep.backends.training_loop import TokenStatistics
from advsweep.backends.trl import vllm_engine
from advsweep.backends.trl.config import Correction, VllmGeneration, hf_model
from advsweep.backends.trl.consistency import Truncation
from advsweep.backends.trl.padded_rows import PaddedRows, TokenizedAnswers
from advsweep.backends.trl.sampling import (
    GREEDY,
    ModelSampler,
    certainty,
    completion_statistics,
    encode,
    forward_statistic,
)
from advsweep.backends.trl.trainer import EstimatorTrainer

if TYPE_CHECKING:
    from jaxtyping import Int

    from advsweep.backends.base import Run
    from advsweep.backends.trl.options import TrlOptions
    from advsweep.backends.trl.steps import Rows
    from advsweep.tasks.base import Problem

_GAP = "sampling/sampling_logp_difference/mean"


class VllmTrainer(EstimatorTrainer):
    """Samples with vLLM, by an engine that TRL makes in this process."""

    _gap_remedy = "try generation=transformers"

    def __init__(self, run: Run, options: TrlOptions, **named: Any) -> None:
        assert isinstance(run.generation, VllmGeneration)
        self._generation = run.generation
        self._needs_certainty = "self_certainty" in run.estimator.needs
        self._unscored = False
        if run.generation.top_p < 1 or run.generation.top_k > 0:
            # TRL has vLLM return log-probabilities of what these leave.
            self._truncation = Truncation(run.generation.top_p, run.generation.top_k)
        model = hf_model(run.model).as_trained()
        settings = {
            # The precision that the training computes in.
            "dtype": "bfloat16" if named["args"].bf16 else model.dtype.value,
            "revision": model.hub_revision,
            "tokenizer_revision": model.hub_revision,
        }
        with vllm_engine.trl_engine(**settings):
            super().__init__(run, options, **named)

    def step_metrics(self) -> dict[str, float]:
        # One value per draw of the step.
        gaps = list(self._metrics["train"][_GAP])
        return {**super().step_metrics(), "sampler/log_prob_gap": sum(gaps) / len(gaps)}

    def evaluation_sampler(self, sampler: ModelSampler) -> ModelSampler:
        fields = {name: getattr(sampler, name) for name in ModelSampler.__dataclass_fields__}
        return EngineSampler(**fields, trainer=self)

    def answer(
        self, prompts: list[list[int]], *, temperature: float, **cuts: Any
    ) -> list[list[int]]:
        """Sample one completion per prompt with the current weights, cut to a top-p and top-k."""
        with self._watched():
            if self.state.global_step != self._last_loaded_step:
                self.vllm_generation.sync_weights()
                self._last_loaded_step: Any = self.state.global_step
            self._forget_prompts()
            engine = self.vllm_generation
            changes = {"temperature": temperature, **cuts}
            before = {name: getattr(engine, name) for name in changes}
            for name, value in changes.items():
                setattr(engine, name, value)
            try:
                _, completions, _, _ = engine.generate(
                    prompts=prompts, images=None, num_generations=1
                )
            finally:
                for name, value in before.items():
                    setattr(engine, name, value)
        answers: list[list[int]] = [list(tokens) for tokens in completions]
        return answers

    def _generate_single_turn(self, *arguments: Any, **named: Any) -> Any:
        with self._watched():
            self._forget_prompts()
            # Not `super()`'s, which records statistics in transformers' `generate`.
            result = GRPOTrainer._generate_single_turn(self, *arguments, **named)
        self._unscored = True
        return result

    def _get_per_token_logps_and_entropies(
        self,
        model: Any,
        input_ids: Int[Tensor, "rows width"],
        attention_mask: Int[Tensor, "rows width"],
        logits_to_keep: int,
        *arguments: Any,
        **named: Any,
    ) -> Any:
        padded = PaddedRows(input_ids, attention_mask, logits_to_keep)
        if not self._unscored:
            return self.token_pass(model, padded, *arguments, **named)
        # TRL's first pass after a generation has the weights that sampled it.
        self._unscored = False
        log_probs, entropies, auxiliary = self.token_pass(
            model, padded, *arguments, **named, compute_entropy=True
        )
        generated = padded.generated
        entropies = entropies.where(generated, 0.0)
        certainties = torch.full((len(input_ids),), torch.nan, device=input_ids.device)
        if self._needs_certainty:
            # By a further pass, which only estimators that read it pay for.
            of_tokens = forward_statistic(self, padded, certainty)
            certainties = of_tokens.where(generated, 0.0).sum(dim=1)
        self.step_buffer.statistics = TokenStatistics(
            lengths=generated.sum(dim=1).float(),
            surprisal=(-log_probs).where(generated, 0.0).sum(dim=1),
            entropy=entropies.sum(dim=1),
            certainty=certainties,
            tokens={"token_entropies": entropies} if self._each_token else {},
        )
        return log_probs, None, auxiliary

    @property
    def _corrects(self) -> bool:
        """Whether the advantages are multiplied by TRL's ratio."""
        none = self._generation.correction is Correction.NONE
        return not (none or self._run.objective.needs_sampler)

    def _generate_and_score_completions(self, inputs: Any) -> dict[str, Tensor]:
        rows = super()._generate_and_score_completions(inputs)
        if self._corrects:
            ratio = rows["importance_sampling_ratio"][rows["keep"], 0]
            cap = self._generation.correction_cap or math.inf
            for name, changed in (("masked", ratio == 0), ("truncated", ratio == cap)):
                share = int(changed.sum()) / max(len(ratio), 1)
                self.step_buffer.metrics[f"sampler/{name}"] = share
        return rows

    def _weighted(self, rows: Rows) -> Rows:
        if not self._corrects:
            return rows
        advantages = rows["advantages"]
        ratio = rows["importance_sampling_ratio"][:, :1]
        # A copy, as the same rows come again in each inner epoch.
        weighted = advantages * (ratio if advantages.ndim > 1 else ratio[:, 0])
        return {**rows, "advantages": weighted}

    def _forget_prompts(self) -> None:
        # Cached prefixes change what is computed together, and so the rounding. Without them the
        # same seed gives the same completions.
        self.vllm_generation.llm.reset_prefix_cache()

    def _watched(self) -> contextlib.AbstractContextManager[None]:
        return vllm_engine.watched(f"step {self.steps_done + 1}")


@dataclass(frozen=True, kw_only=True)
class EngineSampler(ModelSampler):
    """Samples from the weights in training with vLLM; transformers computes the entropies.

    Attributes:
        trainer: the trainer with these weights.
    """

    trainer: VllmTrainer

    def draw(
        self, problems: Sequence[Problem], temperature: float, seed: int
    ) -> tuple[list[list[int]], TokenStatistics]:
        """Draw one completion per problem, and restore the process's random generators."""
        prompts = encode(problems, self.model, self.tokenizer)
        cuda = range(torch.cuda.device_count())
        with torch.random.fork_rng(devices=list(cuda)):
            torch.manual_seed(seed)
            completions = self.trainer.answer(prompts, temperature=temperature, **self.cuts)
        with self.opened() as model:
            answers = TokenizedAnswers(prompts, completions, self.tokenizer.pad_token_id)
            statistics = completion_statistics(
                model, answers, temperature=temperature or GREEDY, rows=self.batch
            )
            kl = self.measure_kl(model, problems, completions, temperature)
        return completions, replace(statistics, kl=kl)
