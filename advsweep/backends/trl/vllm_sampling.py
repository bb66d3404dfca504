"""Answers of a model that vLLM alone has loaded: for evaluations apart from any training."""

from __future__ import annotations

import contextlib
import functools
import gc
import tempfile
import weakref
import zlib
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch

from advsweep.backends.randomness import Stream, torch_seed
from advsweep.backends.trl import vllm_engine
from advsweep.backends.trl.loading import load_model, load_tokenizer
from advsweep.backends.trl.sampling import encode
from advsweep.errors import SamplerError
from advsweep.tasks.base import Completions

if TYPE_CHECKING:
    from advsweep.backends.trl.model_config import HfModel
    from advsweep.tasks.base import Problem


_OTHERWISE = "generation=transformers may do without it"
_AGAIN = "what was counted is kept, and the same command goes on from there"


class VllmSampler:
    """A model that vLLM samples from; its memory is given back by `close`, or with the object.

    Each completion has a seed of its own, so it does not depend on which problems are asked
    together, rounding aside.

    Args:
        folder: of a checkpoint, whose weights are meant; None: the model's own.
        tokens: the most tokens of a completion.
        top_p: share of the probability that is sampled from.
        top_k: tokens that are sampled from; 0: all.
        gpu_memory: share of a GPU's memory that vLLM takes.
        context: most tokens of prompt and completion; None: the model's.

    Raises:
        ConfigError: there is no such model, or none with a tokeniser.
        SamplerError: vLLM cannot load it, or compute with it on this machine.
    """

    def __init__(
        self,
        model: HfModel,
        folder: Path | None = None,
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
        self._tokenizer = load_tokenizer(model, folder)
        revision = None if folder else model.hub_revision
        engine = vllm_engine.engine_class(
            dtype=model.dtype.value,
            revision=revision,
            tokenizer_revision=revision,
            gpu_memory_utilization=gpu_memory,
            max_model_len=context,
        )
        what = f"model.path: {folder or model.path}"
        loading = functools.partial(vllm_engine.watched, what, _OTHERWISE, SamplerError)
        with loading(), self._whole(folder) as place:
            self._engines: list[Any] = [engine(model=place)]
        self.close = weakref.finalize(self, _release, self._engines)
        with loading():
            self._try()

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
        with vllm_engine.watched("evaluation", _AGAIN):
            answers = self._engines[0].generate(
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

    @contextlib.contextmanager
    def _whole(self, folder: Path | None) -> Iterator[str]:
        """Where the weights lie, of an adapter together with what it adapts."""
        if folder is None or self._model.lora_rank == 0:
            yield str(folder or self._model.location)
            return
        with tempfile.TemporaryDirectory() as merged:
            load_model(self._model, folder).save_pretrained(merged)
            self._tokenizer.save_pretrained(merged)
            _release([])
            yield merged

    def _try(self) -> None:
        """Samples a token: what its kernels cannot compute vLLM says no earlier."""
        from vllm import SamplingParams

        self._engines[0].generate(
            [{"prompt_token_ids": [self._tokenizer.eos_token_id]}],
            SamplingParams(max_tokens=1, detokenize=False),
            use_tqdm=False,
        )


def _release(engines: list[Any]) -> None:
    """Gives the memory of engines back, and that of what nothing refers to any more."""
    engines.clear()
    gc.collect()
    if torch.cuda.is_available():
        torch.cuda.empty_cache()
