"""What a checkpoint's `generation_config.json` sets: only its end marks reach an experiment.

transformers fills every setting that a call of `generate` leaves open from there. A penalty or a
min-p of the checkpoint's author would change what is trained on and what pass@k measures, and a
run's config would not say so. vLLM takes them only for calls without settings, which are not made.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

from transformers import AutoConfig, GenerationConfig

from advsweep.backends.trl.loading import NO_CODE, loading, without_adapter

if TYPE_CHECKING:
    from advsweep.backends.trl.config import HfModel

# Tokens, lengths, and what changes no distribution.
_HARMLESS = frozenset(
    {
        "bos_token_id",
        "decoder_start_token_id",
        "eos_token_id",
        "pad_token_id",
        "do_sample",
        "max_length",
        "max_new_tokens",
        "cache_implementation",
        "use_cache",
        "transformers_version",
    }
)
_NEUTRAL: Mapping[str, Any] = {
    "temperature": 1.0,
    "top_p": 1.0,
    "top_k": 0,
    "min_p": 0.0,
    "typical_p": 1.0,
    "repetition_penalty": 1.0,
    "length_penalty": 1.0,
    "num_beams": 1,
    "num_return_sequences": 1,
    "no_repeat_ngram_size": 0,
}


def dropped_settings(config: GenerationConfig) -> dict[str, Any]:
    """Return the settings of a checkpoint that would change what is sampled, by name."""
    dropped = {}
    for name, value in sorted(config.to_diff_dict().items()):
        is_open = name.startswith(("_", "output_", "return_")) or name in _HARMLESS
        if not is_open and value is not None and value != _NEUTRAL.get(name):
            dropped[name] = value
    return dropped


def describe_dropped(model: HfModel, config: GenerationConfig) -> list[str]:
    """Describe what the generation config of a model sets and nothing here samples with."""
    dropped = dropped_settings(config)
    if not dropped:
        return []
    listed = ", ".join(f"{name}={value}" for name, value in dropped.items())
    return [
        f"model.path: the generation config of {model.path} sets {listed}, which is left out: "
        "rollouts and evaluations are sampled by the settings of the run (generation, evaluation)"
    ]


def load_generation_config(model: HfModel) -> GenerationConfig:
    """Return a model's generation config, which may be a part of its configuration.

    Raises:
        ConfigError: it has neither.
    """
    revision = model.hub_revision
    try:
        return GenerationConfig.from_pretrained(model.location, revision=revision)
    except OSError:
        with loading(model, ValueError):
            config = AutoConfig.from_pretrained(model.location, revision=revision, **NO_CODE)
        return GenerationConfig.from_model_config(config)


@contextmanager
def without_defaults(model: Any) -> Iterator[None]:
    """Make `model.generate` take the settings of its call alone meanwhile."""
    # PEFT reads it from the model that it wraps.
    whole = without_adapter(model)
    before = whole.generation_config
    whole.generation_config = GenerationConfig()
    try:
        yield
    finally:
        whole.generation_config = before
