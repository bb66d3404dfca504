"""The trainer whose rollouts, and whose answers to held-out problems, vLLM samples."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor
from trl import GRPOTrainer

from advsweep.backends.trl import vllm_engine
from advsweep.backends.trl.generation_config import Correction, Mode, VllmGeneration
from advsweep.backends.trl.sampling import GREEDY, ModelSampler, encode
from advsweep.backends.trl.scoring import score, score_rows
from advsweep.backends.trl.token_statistics import Signals
from advsweep.backends.trl.trainer import EstimatorTrainer
from advsweep.errors import ConfigError

if TYPE_CHECKING:
    from jaxtyping import Float, Int

    from advsweep.backends.base import Run
    from advsweep.backends.trl.model_config import HfModel
    from advsweep.tasks.base import Problem

_GAP = "sampling/sampling_logp_difference/mean"


class VllmTrainer(EstimatorTrainer):
    """Samples with vLLM, of which TRL keeps one engine per process or reaches a server."""

    def __init__(self, run: Run, model: HfModel, *arguments: Any, **named: Any) -> None:
        assert isinstance(run.generation, VllmGeneration)
        self._generation = run.generation
        self._needs_certainty = "self_certainty" in run.estimator.needs
        self._unscored = False
        cpu = not torch.cuda.is_available()
        if cpu and self._generation.mode is Mode.SERVER:
            raise ConfigError(
                "generation.mode: expected colocate on a machine without a GPU, as TRL sends "
                "weights to a server by NCCL, got server"
            )
        settings = {
            # What the training computes in.
            "dtype": "bfloat16" if named["args"].bf16 else model.dtype.value,
            "revision": model.hub_revision,
            "tokenizer_revision": model.hub_revision,
        }
        with vllm_engine.trl_engine(**settings):
            super().__init__(run, model, *arguments, **named)

    def step_metrics(self) -> dict[str, float]:
        # One per draw of the step; `super()` clears them.
        gaps = list(self._metrics["train"][_GAP])
        return {**super().step_metrics(), "sampler/log_prob_gap": sum(gaps) / len(gaps)}

    def answering(self, sampler: ModelSampler) -> ModelSampler:
        fields = {name: getattr(sampler, name) for name in ModelSampler.__dataclass_fields__}
        return EngineSampler(**fields, trainer=self)

    def answer(
        self, prompts: list[list[int]], *, temperature: float, top_p: float, top_k: int
    ) -> list[list[int]]:
        """Samples one completion per prompt with the weights as they are now."""
        with self._watched():
            if self.state.global_step != self._last_loaded_step:
                self.vllm_generation.sync_weights()
                self._last_loaded_step: Any = self.state.global_step
            # What the cache holds would decide what is computed together, and so the rounding.
            self._forget_prompts()
            with _changed(self.vllm_generation, temperature=temperature, top_p=top_p, top_k=top_k):
                _, completions, _, _ = self.vllm_generation.generate(
                    prompts=prompts, images=None, num_generations=1
                )
        answers: list[list[int]] = [list(tokens) for tokens in completions]
        return answers

    def _generate_single_turn(self, *arguments: Any, **named: Any) -> Any:
        with self._watched():
            self._forget_prompts()
            # Not `super()`'s, which listens to transformers' generation.
            outcome = GRPOTrainer._generate_single_turn(self, *arguments, **named)
        self._unscored = True
        return outcome

    def _get_per_token_logps_and_entropies(
        self,
        model: Any,
        input_ids: Int[Tensor, "rows width"],
        attention_mask: Int[Tensor, "rows width"],
        logits_to_keep: int,
        *arguments: Any,
        **named: Any,
    ) -> Any:
        whole = (model, input_ids, attention_mask, logits_to_keep)
        if not self._unscored:
            return super()._get_per_token_logps_and_entropies(*whole, *arguments, **named)
        # The first pass after a generation is that of the weights that sampled it.
        self._unscored = False
        log_probs, entropies, auxiliary = super()._get_per_token_logps_and_entropies(
            *whole, *arguments, **named, compute_entropy=True
        )
        generated = attention_mask[:, -logits_to_keep:].bool()
        self._signals = Signals(
            lengths=generated.sum(dim=1).float(),
            surprisal=(-log_probs).where(generated, 0.0).sum(dim=1),
            entropy=entropies.where(generated, 0.0).sum(dim=1),
            certainty=self._certainty(*whole),
        ).stacked()
        return log_probs, None, auxiliary

    def _certainty(
        self,
        model: Any,
        ids: Int[Tensor, "rows width"],
        mask: Int[Tensor, "rows width"],
        tokens: int,
    ) -> Float[Tensor, " rows"]:
        """By a pass of its own, where the estimator reads it; NaN elsewhere."""
        if not self._needs_certainty:
            return torch.full((len(ids),), torch.nan, device=ids.device)
        size = self.args.per_device_train_batch_size
        parts = [
            score_rows(
                model,
                ids[start : start + size],
                mask[start : start + size],
                tokens,
                temperature=self.temperature,
            ).certainty
            for start in range(0, len(ids), size)
        ]
        return torch.cat(parts)

    def _compute_loss(self, model: Any, inputs: dict[str, Any]) -> Tensor:
        if self._generation.correction is not Correction.NONE:
            ratio = inputs["importance_sampling_ratio"][:, 0]
            # The buffered rows come again in each inner epoch.
            inputs = {**inputs, "advantages": inputs["advantages"] * ratio}
        return super()._compute_loss(model, inputs)

    def _forget_prompts(self) -> None:
        if self._generation.mode is Mode.COLOCATE:
            self.vllm_generation.llm.reset_prefix_cache()

    def _watched(self) -> contextlib.AbstractContextManager[None]:
        return vllm_engine.watched(f"step {self.steps_done + 1}")


@dataclass(frozen=True, kw_only=True)
class EngineSampler(ModelSampler):
    """The weights in training, which vLLM samples from and transformers computes entropies of.

    Attributes:
        trainer: whose weights they are.
    """

    trainer: VllmTrainer

    def draw(
        self, problems: Sequence[Problem], temperature: float, seed: int, *, cut: bool
    ) -> tuple[list[list[int]], Signals]:
        """Draws one completion per problem; the process's generators are left alone.

        A server draws by generators of its own, which the seed does not reach.
        """
        prompts = encode(problems, self.model, self.tokenizer)
        cuda = range(torch.cuda.device_count())
        with torch.random.fork_rng(devices=list(cuda)):
            torch.manual_seed(seed)
            completions = self.trainer.answer(
                prompts,
                temperature=temperature,
                top_p=self.generation.top_p if cut else self.top_p,
                top_k=self.generation.top_k if cut else 0,
            )
        with self.opened() as model:
            signals = score(
                model,
                prompts,
                completions,
                temperature=temperature or GREEDY,
                pad_id=self.tokenizer.pad_token_id,
                rows=self.batch,
            )
        return completions, signals


@contextlib.contextmanager
def _changed(target: Any, **values: Any) -> Iterator[None]:
    before = {name: getattr(target, name) for name in values}
    for name, value in values.items():
        setattr(target, name, value)
    try:
        yield
    finally:
        for name, value in before.items():
            setattr(target, name, value)
