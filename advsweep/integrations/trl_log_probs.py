"""The check of log-probabilities (`advsweep.backends.trl.consistency`) in TRL's GRPOTrainer."""

from __future__ import annotations

import warnings
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from advsweep.backends.trl.consistency import Bound, Truncation, compared_rows, measure_gap
from advsweep.backends.trl.generation_defaults import dropped_settings
from advsweep.backends.trl.loading import without_adapter
from advsweep.errors import AdvsweepWarning
from advsweep.integrations.trl_checks import largest_dropout

if TYPE_CHECKING:
    from jaxtyping import Float, Int

    from advsweep.backends.trl.padded_rows import PaddedRows


def warn_of_defaults(trainer: Any) -> None:
    """Warn of what TRL samples with because the model's generation config says so.

    TRL's loss knows none of it. Settings of its arguments replace those of the model.
    """
    if trainer.use_vllm:
        return  # vLLM takes none of them where a call has settings
    taken = {
        name: value
        for name, value in dropped_settings(trainer.model.generation_config).items()
        if getattr(trainer.generation_config, name, None) is None
    }
    if taken:
        listed = ", ".join(f"{name}={value}" for name, value in taken.items())
        warnings.warn(
            f"model: TRL samples with {listed}, from the model's generation_config, and its loss "
            f"does not know that; set each to None in model.generation_config before you make the "
            "trainer",
            AdvsweepWarning,
            stacklevel=3,
        )


class LogProbCheck:
    """Compares the first rollouts of a training; later ones are left alone.

    There is no comparison with tools, images, dropout, continuous batching or a rollout function
    of the user's. With vLLM it needs its correction, and no penalty or min-p.

    Args:
        trainer: after its own `__init__`.
        nats: the bound; None: the one of its precision.
    """

    def __init__(self, trainer: Any, nats: float | None) -> None:
        self._trainer = trainer
        self._nats = nats
        self._sampled: Float[Tensor, "rows tokens"] | None = None
        self._is_done = not _is_comparable(trainer)

    @contextmanager
    def recording(self, prompts: Sequence[Sequence[int]]) -> Iterator[_ForwardRecorder | None]:
        """Record what a call of `generate` draws from, if it is the first one."""
        trainer = self._trainer
        if self._is_done or trainer.use_vllm or not trainer.model.training:
            yield None
            return
        lengths = torch.tensor([len(prompt) for prompt in prompts])
        model = trainer.accelerator.unwrap_model(trainer.model_wrapped)
        whole = without_adapter(model)
        recorder = _ForwardRecorder(compared_rows(lengths), trainer.temperature)
        hook = whole.register_forward_hook(recorder, with_kwargs=True)
        try:
            yield recorder
        finally:
            hook.remove()

    def keep(self, recorder: _ForwardRecorder | None, completions: Sequence[Sequence[int]]) -> None:
        """Keep what was recorded of these completions."""
        if recorder is not None:
            self._sampled = recorder.log_probs(completions)

    def check(self, outputs: Mapping[str, Any], lengths: Sequence[int]) -> None:
        """Compare the rollouts of the first call.

        Args:
            outputs: what TRL's generation returns.
            lengths: tokens of each completion.

        Raises:
            ConfigError: names the model's class and the largest difference.
        """
        if self._is_done:
            return
        self._is_done = True
        trainer = self._trainer
        completions = outputs["completion_ids"]
        # Not TRL's mask, which is 0 for truncated rollouts with `mask_truncated_completions`.
        generated = torch.arange(completions.shape[1]) < torch.tensor(lengths)[:, None]
        rows = {
            "prompt_ids": outputs["prompt_ids"],
            "prompt_mask": outputs["prompt_mask"],
            "completion_ids": completions,
            "completion_mask": generated.to(outputs["prompt_mask"]),
        }

        def score(padded: PaddedRows) -> Float[Tensor, "rows tokens"]:
            log_probs: Tensor = trainer._get_per_token_logps_and_entropies(trainer.model, *padded)[
                0
            ]
            return log_probs

        truncation = None
        sampled = self._sampled
        remedy = "try another attn_implementation or another model"
        if trainer.use_vllm:
            sampled = outputs["sampling_per_token_logps"]
            remedy = "try use_vllm=False"
            if trainer.top_p < 1 or trainer.top_k > 0:
                truncation = Truncation(trainer.top_p, trainer.top_k)
        assert sampled is not None
        gap = measure_gap(trainer, rows, sampled, score, truncation)
        bound = Bound.of(trainer, self._nats)
        bound.check(gap, trainer.model, f"{remedy}; log_prob_bound sets the bound")


def _is_comparable(trainer: Any) -> bool:
    if trainer.tools or trainer.environment_factories or trainer.rollout_func is not None:
        return False
    if trainer._is_vlm or trainer.use_transformers_continuous_batching:
        return False
    if trainer.use_vllm:
        is_plain = trainer.min_p is None and trainer.repetition_penalty == 1
        corrects = bool(trainer.vllm_importance_sampling_correction)
        return corrects and is_plain and not trainer.args.generation_kwargs
    return largest_dropout(trainer.model) == 0


class _ForwardRecorder:
    """A hook of a model that records log π of the tokens that one `generate` draws.

    Unlike a processor of logits it sees them as the model computes them, before any penalty.

    Args:
        rows: the rows to record; the others get NaN.
    """

    def __init__(self, rows: Int[Tensor, " some"], temperature: float) -> None:
        self._rows = rows
        self._temperature = temperature
        self._log_p: Float[Tensor, "some vocabulary"] | None = None
        self._log_probs: list[Float[Tensor, " some"]] = []

    def __call__(self, model: Any, arguments: Any, named: Mapping[str, Any], output: Any) -> None:
        rows = self._rows.to(output.logits.device)
        if self._log_p is not None:
            self._add(named["input_ids"][rows, -1])
        logits = output.logits[rows, -1].float() / self._temperature
        self._log_p = torch.log_softmax(logits, dim=-1)

    def log_probs(self, completions: Sequence[Sequence[int]]) -> Float[Tensor, "rows tokens"]:
        """Return log π of the tokens of the recorded rows of all."""
        # The model never gets the last token as input.
        tokens = [completions[row][-1] for row in self._rows.tolist()]
        self._add(torch.tensor(tokens))
        recorded = torch.stack(self._log_probs, dim=1)
        log_probs = recorded.new_full((len(completions), recorded.shape[1]), torch.nan)
        log_probs[self._rows.to(log_probs.device)] = recorded
        return log_probs

    def _add(self, tokens: Int[Tensor, " some"]) -> None:
        assert self._log_p is not None
        tokens = tokens.to(self._log_p.device)
        self._log_probs.append(self._log_p.gather(1, tokens[:, None])[:, 0])
