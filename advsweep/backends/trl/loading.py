"""Loading of models and tokenizers with transformers, with checks that they can be trained."""

from __future__ import annotations

import math
import string
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
from huggingface_hub import try_to_load_from_cache
from huggingface_hub.errors import HFValidationError
from safetensors import SafetensorError
from transformers import AutoConfig, AutoModelForCausalLM, AutoTokenizer
from transformers.models.auto.modeling_auto import MODEL_FOR_CAUSAL_LM_MAPPING_NAMES
from transformers.utils.logging import disable_progress_bar

from advsweep.backends.trl.config import Prompt
from advsweep.errors import ConfigError
from advsweep.machine import hub_unreachable

if TYPE_CHECKING:
    from advsweep.backends.trl.config import HfModel


# If unset, transformers asks at the terminal whether to run code that comes with a model.
NO_CODE = {"trust_remote_code": False}


def model_arguments(model: HfModel) -> dict[str, Any]:
    """Return the arguments of `from_pretrained` other than the path."""
    arguments = {
        "dtype": model.dtype.value,
        "revision": model.hub_revision,
        "attn_implementation": model.attention,
        **NO_CODE,
    }
    return {name: value for name, value in arguments.items() if value is not None}


def load_tokenizer(model: HfModel, folder: Path | None = None) -> Any:
    """Return the model's tokenizer, set up to pad on the left.

    Args:
        folder: the tokenizer's folder; None: the model's location.

    Raises:
        ConfigError: the model is missing or not causal, or has no padding token.
    """
    # Progress bars fill the logs of runs.
    disable_progress_bar()
    location = str(folder or model.location)
    revision = None if folder else model.hub_revision
    vocabulary: float = math.inf
    if folder is None:
        model.check_folder()
        _check_hub(model)
        vocabulary = _config(model, location, revision).get_text_config().vocab_size
    try:
        tokenizer = AutoTokenizer.from_pretrained(
            location, revision=revision, padding_side="left", **NO_CODE
        )
        # transformers makes an empty tokenizer if a folder has no tokenizer files.
        if not tokenizer.encode(string.printable, add_special_tokens=False, verbose=False):
            raise OSError("no words; are its files there (tokenizer.json, tokenizer_config.json)?")
        if tokenizer.eos_token is None:
            raise OSError("no end mark")
    except (OSError, ValueError) as error:
        raise ConfigError(
            f"model.path: expected a model with a tokenizer, got {model.path}: {_first(error)}"
        ) from error
    if model.pad_token is not None:
        tokenizer.pad_token = model.pad_token
    if not _can_pad(tokenizer, vocabulary):
        raise ConfigError(
            f"model.pad_token: expected a token that {model.path} knows, to fill batches with, got "
            f"{tokenizer.pad_token!r}; its end mark may do: "
            f"\"model.pad_token='{tokenizer.eos_token}'\""  # as shells and Hydra take it
        )
    if model.prompt is Prompt.CHAT and tokenizer.chat_template is None:
        raise ConfigError(
            f"model.prompt: expected auto or plain, as the tokenizer of {model.path} has no chat "
            f"template, got chat"
        )
    return tokenizer


def _can_pad(tokenizer: Any, vocabulary: float) -> bool:
    """Whether the padding token is one of the model's words."""
    if not tokenizer.pad_token:
        return False
    pad_id = tokenizer.convert_tokens_to_ids(tokenizer.pad_token)
    if pad_id is None or pad_id >= vocabulary:
        return False
    # An unknown token becomes the unknown mark, which may itself be the padding token.
    return bool(tokenizer.convert_ids_to_tokens(pad_id) == tokenizer.pad_token)


def _check_hub(model: HfModel) -> None:
    """Refuse a name of the hub that is not cached if the hub cannot be reached."""
    if model.folder.is_dir():
        return
    try:
        kept = try_to_load_from_cache(model.path, "config.json", revision=model.hub_revision)
    except HFValidationError:
        return  # not a valid name on the hub; transformers reports that
    if isinstance(kept, str):
        return
    reason = hub_unreachable()
    if reason:
        raise ConfigError(
            f"model.path: there is no folder '{model.path}' here, and it cannot be fetched from "
            f"the hub: {reason}"
        )


def _config(model: HfModel, location: str, revision: str | None) -> Any:
    """Return the model's configuration, checked to be of a causal language model."""
    try:
        config = AutoConfig.from_pretrained(location, revision=revision, **NO_CODE)
    except (OSError, ValueError) as error:
        raise ConfigError(
            f"model.path: expected a model that transformers loads, got {model.path}: "
            f"{_first(error)}"
        ) from error
    architectures = config.architectures or []
    names = MODEL_FOR_CAUSAL_LM_MAPPING_NAMES.get(config.model_type)
    causal = {names} if isinstance(names, str) else set(names or ())
    if not causal.intersection(architectures):
        expected = f"; expected {' or '.join(sorted(causal))}" if causal else ""
        raise ConfigError(
            f"model.path: expected a causal language model, got {model.path}: "
            f"{', '.join(architectures) or config.model_type}{expected}"
        )
    return config


def load_model(model: HfModel, folder: Path | None = None) -> Any:
    """Return the model in evaluation mode, with the weights of a checkpoint if given.

    Raises:
        ConfigError: the weights are missing or cannot be loaded.
    """
    disable_progress_bar()
    if folder is not None and model.lora_rank:
        from peft import PeftModel

        base = load_model(model)
        return PeftModel.from_pretrained(base, str(folder)).merge_and_unload().eval()
    arguments = model_arguments(model)
    if folder is None:
        model.check_folder()
    else:
        arguments.pop("revision", None)
    location = str(folder or model.location)
    with loading(model, ValueError):
        loaded = AutoModelForCausalLM.from_pretrained(location, **arguments)
    return loaded.to("cuda" if torch.cuda.is_available() else "cpu").eval()


def without_adapter(model: Any) -> Any:
    """Return the model that an adapter of PEFT wraps; a model without one is returned as it is."""
    return model.get_base_model() if hasattr(model, "get_base_model") else model


def disable_dropout(model: Any) -> None:
    """Set the rates of dropout to 0 that modules keep as numbers.

    TRL disables modules of torch's `Dropout` class. Layers of OPT and others call the function
    instead, with a rate of their own.
    """
    for module in model.modules():
        for name, value in vars(module).items():
            if "drop" in name and isinstance(value, float):
                setattr(module, name, 0.0)


def lora_config(model: HfModel) -> Any:
    """Return PEFT's settings of the model's adapter.

    Raises:
        ConfigError: its rank is above the width of the model, which no matrix can have.
    """
    from peft import LoraConfig

    revision = None if model.folder.is_dir() else model.hub_revision
    width = _config(model, model.location, revision).get_text_config().hidden_size
    if model.lora_rank > width:
        raise ConfigError(
            f"model.lora_rank: expected at most {width}, the width of {model.path}, got "
            f"{model.lora_rank}"
        )
    targets = list(model.lora_targets)
    return LoraConfig(
        r=model.lora_rank,
        lora_alpha=model.lora_alpha,
        target_modules=targets[0] if targets == ["all-linear"] else targets,
        task_type="CAUSAL_LM",
    )


@contextmanager
def loading(model: HfModel, *others: type[Exception]) -> Iterator[None]:
    """Name the model in errors of loading it.

    Args:
        others: further classes of errors that loading may raise.

    Raises:
        ConfigError: the weights are missing or damaged, or need a missing package.
    """
    causes: tuple[type[Exception], ...] = (OSError, ImportError, SafetensorError, *others)
    try:
        yield
    except causes as error:
        raise ConfigError(
            f"model: expected one that transformers can load, got {model.path}: {_first(error)}"
        ) from error


def _first(error: Exception) -> str:
    """Return the first line of a library's message."""
    return str(error).strip().splitlines()[0]
