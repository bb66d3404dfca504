"""Set-up of vLLM for weights that change, and sampling from a checkpoint with vLLM.

On a CPU vLLM packs weights into another layout after loading. Copying new weights into a packed
linear layer fails. A `lm_head` tied to the embeddings keeps its old packed weights without any
error, which is worse. So this module turns the packing off.
"""

from __future__ import annotations

import contextlib
import ctypes
import functools
import gc
import os
import tempfile
import warnings
import weakref
import zlib
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch

from advsweep.backends.randomness import Stream, torch_seed
from advsweep.backends.trl.config import OWN_MEMORY, stop_settings
from advsweep.backends.trl.ends import Ends, end_marks
from advsweep.backends.trl.generation_defaults import load_generation_config
from advsweep.backends.trl.loading import load_model, load_tokenizer
from advsweep.backends.trl.sampling import encode
from advsweep.errors import AdvsweepError, ConfigError, SamplerError, TrainingError
from advsweep.tasks.base import Completions

if TYPE_CHECKING:
    from advsweep.backends.trl.config import HfModel, VllmGeneration
    from advsweep.tasks.base import Problem

_ENVIRONMENT = {
    # Keep the engine in this process: its weights can be set, and it exits with the process.
    "VLLM_ENABLE_V1_MULTIPROCESSING": "0",
    "VLLM_LOGGING_LEVEL": "WARNING",
    # vLLM logs to stdout by default, which is for the data of commands.
    "VLLM_LOGGING_STREAM": "ext://sys.stderr",
    "VLLM_NO_USAGE_STATS": "1",
}
_CPU_ENVIRONMENT = {
    # The executor assigns cores to runs; vLLM must not bind its threads to others.
    "VLLM_CPU_OMP_THREADS_BIND": "nobind",
    "VLLM_CPU_KVCACHE_SPACE": "1",
    # It warns of these settings, and of packages that CPUs do not need.
    "VLLM_LOGGING_LEVEL": "ERROR",
}
_LAUNCHER = ("RANK", "LOCAL_RANK", "WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT")


def engine_class(**settings: Any) -> Any:
    """Return vLLM's `LLM` with settings for this machine and those given.

    Raises:
        ConfigError: a library that vLLM's kernels for CPUs need is missing.
    """
    cpu = not torch.cuda.is_available()
    if cpu:
        # vLLM only warns that it has no kernels, and fails later.
        try:
            ctypes.CDLL("libnuma.so.1")
        except OSError as error:
            raise ConfigError(
                f"generation: vLLM's kernels for CPUs need libnuma, which cannot be loaded "
                f"({error}); on Debian and Ubuntu: apt-get install libnuma1"
            ) from error
    for name, value in (_ENVIRONMENT | (_CPU_ENVIRONMENT if cpu else {})).items():
        os.environ.setdefault(name, value)
    from vllm import LLM

    # vLLM warns of its own code.
    warnings.filterwarnings("ignore", category=FutureWarning, module=r"vllm\.")
    # Progress bars fill the logs of runs.
    settings["use_tqdm_on_load"] = False
    if cpu:
        # Compilation takes longer than a small model's whole training.
        settings["enforce_eager"] = True
    return functools.partial(LLM, **settings)


@contextlib.contextmanager
def weights_as_loaded() -> Iterator[None]:
    """Engines made in this context keep weights in the layout of the file."""
    if torch.cuda.is_available():
        yield
        return
    from vllm.model_executor.layers import utils

    packing = utils.dispatch_cpu_unquantized_gemm
    utils.dispatch_cpu_unquantized_gemm = compute_with_weights
    try:
        yield
    finally:
        utils.dispatch_cpu_unquantized_gemm = packing


def compute_with_weights(layer: Any, remove_weight: bool) -> None:
    """Replacement of vLLM's packing: the layer computes with unpacked weights."""
    layer.cpu_linear = torch.nn.functional.linear


@contextlib.contextmanager
def trl_engine(**settings: Any) -> Iterator[None]:
    """TRL adds these settings to an engine that it makes in this context."""
    engine = engine_class(**settings)

    def made(**theirs: Any) -> Any:
        with watched("before the first step"):
            return engine(**theirs)

    from trl.generation import vllm_generation

    before = {name: os.environ.get(name) for name in _LAUNCHER}
    theirs = vllm_generation.LLM
    vllm_generation.LLM = made
    try:
        with weights_as_loaded():
            yield
    finally:
        vllm_generation.LLM = theirs
        # TRL sets these variables for the engine. A later training in this process would read
        # them as a launcher's, and wait for other processes.
        for name, value in before.items():
            if value is None:
                os.environ.pop(name, None)
            else:
                os.environ[name] = value


_RETRY = "see the run's log; 'advsweep retry' resumes from the last checkpoint"


@contextlib.contextmanager
def watched(
    what: str, remedy: str = _RETRY, kind: type[AdvsweepError] = TrainingError
) -> Iterator[None]:
    """Name vLLM in errors of this context; errors about memory pass through.

    Args:
        what: first words of the message: what vLLM was doing.
        remedy: last words of the message: what the user can do.

    Raises:
        TrainingError: or `kind`; vLLM failed, or its server cannot be reached.
    """
    try:
        yield
    except (AdvsweepError, torch.OutOfMemoryError, MemoryError):
        raise
    except Exception as error:
        # vLLM and TRL's client of its server document no classes of errors.
        lines = str(error).strip().splitlines() or [type(error).__name__]
        raise kind(f"{what}: vLLM failed: {lines[0]}; {remedy}") from error


_OTHERWISE = "generation=transformers may work instead"
_AGAIN = "finished evaluations are stored; the same command makes the others"


class VllmSampler:
    """A model that vLLM samples from; `close` frees its memory, and so does deleting it.

    Each problem has a seed of its own, so its completions do not depend on the problems beside
    it, except for rounding.

    Args:
        folder: a checkpoint with weights; None: the model's own weights.
        tokens: the most tokens of a completion.
        top_p: share of the probability that is sampled from.

    Raises:
        ConfigError: there is no such model, or it has no tokenizer.
        SamplerError: vLLM cannot load it, or compute with it on this machine.
    """

    def __init__(
        self,
        model: HfModel,
        folder: Path | None,
        generation: VllmGeneration,
        *,
        tokens: int,
        top_p: float = 1.0,
    ) -> None:
        self._model = model
        self._tokens = tokens
        self._top_p = top_p
        self._tokenizer = load_tokenizer(model, folder)
        marks = end_marks(load_generation_config(model), self._tokenizer)
        self._ends = Ends(self._tokenizer, marks, generation.stop)
        revision = None if folder else model.hub_revision
        engine = engine_class(
            dtype=model.dtype.value,
            revision=revision,
            tokenizer_revision=revision,
            gpu_memory_utilization=generation.gpu_memory or OWN_MEMORY,
            max_model_len=generation.context,
        )
        from vllm import SamplingParams

        what = f"model.path: {folder or model.path}"
        self._engines: list[Any] = []
        self.close = weakref.finalize(self, _release, self._engines)
        with watched(what, _OTHERWISE, SamplerError):
            with self._whole(folder) as model_folder:
                self._engines.append(engine(model=model_folder))
            # Sample one token: vLLM reports what its kernels cannot compute no earlier.
            self._engines[0].generate(
                [{"prompt_token_ids": [self._tokenizer.eos_token_id]}],
                SamplingParams(max_tokens=1, detokenize=False),
                use_tqdm=False,
            )

    def sample(
        self, problems: Sequence[Problem], n: int, *, temperature: float, seed: int
    ) -> Completions:
        """Draw n completions per problem; the same seed gives the same completions.

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
                max_tokens=self._tokens,
                # vLLM adds 0 to n-1 for the n completions.
                seed=torch_seed(seed, Stream.EVALUATION, zlib.crc32(problem.id.encode())) >> 1,
                **stop_settings(self._ends.stop),
            )
            for problem in problems
        ]
        with watched("evaluation", _AGAIN):
            answers = self._engines[0].generate(
                [{"prompt_token_ids": ids} for ids in prompts], settings, use_tqdm=False
            )
        texts = []
        for answer in answers:
            texts.append([self._ends.text_of(output.token_ids) for output in answer.outputs])
        return Completions(texts)

    @contextlib.contextmanager
    def _whole(self, folder: Path | None) -> Iterator[str]:
        """A folder with the weights; an adapter is merged into its base model first."""
        if folder is None or self._model.lora_rank == 0:
            yield str(folder or self._model.location)
            return
        with tempfile.TemporaryDirectory() as merged:
            load_model(self._model, folder).save_pretrained(merged)
            self._tokenizer.save_pretrained(merged)
            _release([])
            yield merged


def _release(engines: list[Any]) -> None:
    """Free the memory of engines, and that of unreferenced tensors."""
    engines.clear()
    gc.collect()
    if torch.cuda.is_available():
        torch.cuda.empty_cache()
