"""Answers of a model that vLLM alone has loaded: for evaluations apart from any training."""

from __future__ import annotations

import gc
import zlib
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import torch

from advsweep.backends.randomness import Stream, torch_seed
from advsweep.backends.trl import vllm_engine
from advsweep.backends.trl.loading import load_tokenizer
from advsweep.backends.trl.sampling import encode
from advsweep.tasks.base import Completions

if TYPE_CHECKING:
    from advsweep.backends.trl.model_config import HfModel
    from advsweep.tasks.base import Problem


class VllmSampler:
    """A model that vLLM samples from; `close` gives its memory back.

    Each completion has a seed of its own, so it does not depend on which problems are asked
    together, rounding aside.

    Args:
        tokens: the most tokens of a completion.
        top_p: share of the probability that is sampled from.
        top_k: tokens that are sampled from; 0: all.
        gpu_memory: share of a GPU's memory that vLLM takes.
        context: most tokens of prompt and completion; None: the model's.

    Raises:
        ConfigError: there is no such model, or none with a tokeniser.
        TrainingError: vLLM cannot load it.
    """

    def __init__(
        self,
        model: HfModel,
        *,
        tokens: int,
        top_p: float = 1.0,
        top_k: int = 0,
        gpu_memory: float = 0.9,
        context: int | None = None,
    ) -> None:
        self._model = model
        self._tokens = tokens
        self._top_p = top_p
        self._top_k = top_k
        self._tokenizer = load_tokenizer(model)
        engine = vllm_engine.engine_class(
            dtype=model.dtype.value,
            revision=model.hub_revision,
            tokenizer_revision=model.hub_revision,
            gpu_memory_utilization=gpu_memory,
            max_model_len=context,
        )
        with vllm_engine.watched(f"model.path: {model.path}"):
            self._engine: Any = engine(model=model.location)

    def sample(
        self, problems: Sequence[Problem], n: int, *, temperature: float, seed: int
    ) -> Completions:
        """Draws n completions per problem; the same seed gives the same completions.

        Args:
            temperature: 0 takes the likeliest token each time; n must be 1 then.
        """
        from vllm import SamplingParams

        prompts = encode(problems, self._model, self._tokenizer)
        settings = [
            SamplingParams(
                n=n,
                temperature=temperature,
                top_p=self._top_p,
                top_k=self._top_k,
                max_tokens=self._tokens,
                # vLLM counts up from it for the n completions.
                seed=torch_seed(seed, Stream.EVALUATION, zlib.crc32(problem.id.encode())) >> 1,
                detokenize=False,
            )
            for problem in problems
        ]
        with vllm_engine.watched("evaluation"):
            answers = self._engine.generate(
                [{"prompt_token_ids": ids} for ids in prompts], settings, use_tqdm=False
            )
        return Completions(
            texts=[
                self._tokenizer.batch_decode(
                    [list(one.token_ids) for one in answer.outputs], skip_special_tokens=True
                )
                for answer in answers
            ]
        )

    def close(self) -> None:
        del self._engine
        gc.collect()
        if torch.cuda.is_available():
            torch.cuda.empty_cache()
