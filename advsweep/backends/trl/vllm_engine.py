"""vLLM as it has to be set up to sample from weights that change.

On a CPU vLLM packs weights into another layout when it has loaded them. Of the linear layers
nothing remains then that new weights could be copied to, which fails; of the embeddings there
remains what the input reads, so that a `lm_head` tied to them would go on with the old weights,
which nothing reports. Here they are left as they are.
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
from advsweep.backends.trl.loading import load_model, load_tokenizer
from advsweep.backends.trl.sampling import encode
from advsweep.errors import AdvsweepError, ConfigError, SamplerError, TrainingError
from advsweep.tasks.base import Completions

if TYPE_CHECKING:
    from advsweep.backends.trl.model_config import HfModel
    from advsweep.tasks.base import Problem

_ENVIRONMENT = {
    # The engine lives in this process: its weights can be set, and it ends with it.
    "VLLM_ENABLE_V1_MULTIPROCESSING": "0",
    "VLLM_LOGGING_LEVEL": "WARNING",
    # Where commands print their data vLLM would log.
    "VLLM_LOGGING_STREAM": "ext://sys.stderr",
    "VLLM_NO_USAGE_STATS": "1",
}
_CPU_ENVIRONMENT = {
    # Runs share the cores, which their executor deals out.
    "VLLM_CPU_OMP_THREADS_BIND": "nobind",
    "VLLM_CPU_KVCACHE_SPACE": "1",
    # It warns of what is set here, and of packages that no CPU needs.
    "VLLM_LOGGING_LEVEL": "ERROR",
}
_LAUNCHER = ("RANK", "LOCAL_RANK", "WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT")


def engine_class(**settings: Any) -> Any:
    """vLLM's `LLM`, with settings that suit the machine and those given.

    Raises:
        ConfigError: a library is missing that vLLM's kernels for CPUs are linked with.
    """
    cpu = not torch.cuda.is_available()
    if cpu:
        _check_libraries()
    for name, value in (_ENVIRONMENT | (_CPU_ENVIRONMENT if cpu else {})).items():
        os.environ.setdefault(name, value)
    from vllm import LLM

    # Of its own code, to its authors.
    warnings.filterwarnings("ignore", category=FutureWarning, module=r"vllm\.")
    # Its bars would stand in the logs of runs.
    settings["use_tqdm_on_load"] = False
    if cpu:
        # Compilation takes longer than a small model's whole training.
        settings["enforce_eager"] = True
    return functools.partial(LLM, **settings)


def _check_libraries() -> None:
    """vLLM itself only warns that it has no kernels, and fails later for want of one."""
    try:
        ctypes.CDLL("libnuma.so.1")
    except OSError as error:
        raise ConfigError(
            f"generation: vLLM's kernels for CPUs need libnuma, which cannot be loaded ({error}); "
            f"on Debian and Ubuntu: apt-get install libnuma1"
        ) from error


@contextlib.contextmanager
def weights_as_loaded() -> Iterator[None]:
    """Engines that are made meanwhile leave weights in the layout that they are loaded in."""
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
    """Takes the place of vLLM's packing: the layer computes with its weights as they are."""
    layer.cpu_linear = torch.nn.functional.linear


@contextlib.contextmanager
def trl_engine(**settings: Any) -> Iterator[None]:
    """TRL, when it makes an engine of its own meanwhile, makes it with these settings too."""
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
        # TRL sets them for the engine; a training that follows in this process would take
        # itself for one of several.
        for name, value in before.items():
            if value is None:
                os.environ.pop(name, None)
            else:
                os.environ[name] = value


_RETRY = (
    "the run's log has more. What was trained is kept up to the last checkpoint, from which "
    "'advsweep retry' goes on"
)


@contextlib.contextmanager
def watched(
    what: str, remedy: str = _RETRY, kind: type[AdvsweepError] = TrainingError
) -> Iterator[None]:
    """Says of errors that they are vLLM's; want of memory stays what it is.

    Args:
        what: what it is asked for, as the message's beginning.
        remedy: what can be done, as its end.

    Raises:
        TrainingError, or what `kind` is: vLLM has died, or a server of it cannot be reached.
    """
    try:
        yield
    except (AdvsweepError, torch.OutOfMemoryError, MemoryError):
        raise
    except Exception as error:
        # vLLM and TRL's client of its server raise whatever they like.
        words = str(error).strip().splitlines()
        said = words[0] if words else type(error).__name__
        raise kind(f"{what}: vLLM failed: {said}; {remedy}") from error


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
        engine = engine_class(
            dtype=model.dtype.value,
            revision=revision,
            tokenizer_revision=revision,
            gpu_memory_utilization=gpu_memory,
            max_model_len=context,
        )
        what = f"model.path: {folder or model.path}"
        loading = functools.partial(watched, what, _OTHERWISE, SamplerError)
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
        with watched("evaluation", _AGAIN):
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
