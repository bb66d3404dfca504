"""The releases of TRL that are supported, and what differs between them.

The ranges are those of the extras in pyproject.toml; each release of TRL says itself with which
releases of vLLM it works. `advsweep doctor` and the check of a run compare both. Nothing here
imports TRL or transformers: plans ask before anything is loaded.

What differs, and matters here:

    1.12, 1.13      only the tokenizer's end mark ends a completion, not those that the model names
    1.12 to 1.14    entropies have a gradient only with an entropy bonus of TRL's own
    1.14            the forward pass does not list the images that it takes
    1.12 to 1.15    the seed is set after the weights of an adapter are drawn
    1.15            log-probabilities need Triton and a GPU
"""

from __future__ import annotations

import functools
import importlib.metadata
from collections.abc import Collection, Iterable, Sequence
from typing import TYPE_CHECKING, Any

from advsweep import packages
from advsweep.errors import ConfigError

if TYPE_CHECKING:
    from packaging.requirements import Requirement

# Releases inside the range that are left out of it, as the last part of a message.
_LEFT_OUT = {
    ("trl", "1.15"): "which computes log-probabilities with Triton on a GPU and fails without",
}

# What TRL's forward pass takes of a multimodal model, in addition to tokens.
IMAGE_ARGUMENTS = (
    "pixel_values",
    "image_grid_thw",
    "num_images",
    "pixel_attention_mask",
    "spatial_shapes",
    "num_tiles",
    "image_sizes",
    "token_type_ids",
    "mm_token_type_ids",
    "image_position_ids",
)


def required_by(extra: str) -> list[Requirement]:
    """Return what an extra requires; of vLLM the releases that the installed TRL knows, too.

    Raises:
        importlib.metadata.PackageNotFoundError: advsweep is not installed as a package.
    """
    required = packages.requirements(extra)
    if extra not in ("vllm", "vllm-cpu"):
        return required
    try:
        of_trl = packages.requirements("vllm", of="trl")
    except importlib.metadata.PackageNotFoundError:
        return required
    for requirement in required:
        for other in of_trl:
            if requirement.name == extra and other.name == "vllm":
                requirement.specifier &= other.specifier
    return required


def describe_unmet(unmet: Iterable[Requirement]) -> str:
    """Return what is needed and what is installed, in one line."""
    texts = []
    for requirement in unmet:
        text = packages.describe_unmet(requirement)
        release = text.rpartition(" ")[2].split(".")
        reason = _LEFT_OUT.get((requirement.name, ".".join(release[:2])))
        texts.append(f"{text}, {reason}" if reason else text)
    return "; ".join(texts)


def check_releases(extra: str, names: Collection[str], what: str) -> None:
    """Refuse packages of an extra whose installed releases are outside its ranges.

    Args:
        names: the packages that are needed.
        what: what needs them, for the message.

    Raises:
        ConfigError: says what is needed, what is installed, and the command that installs it.
    """
    misfits = describe_misfits(extra, frozenset(names))
    if misfits:
        raise ConfigError(f"{what} needs {misfits}")


# Plans have thousands of runs, and metadata are files.
@functools.cache
def describe_misfits(extra: str, names: frozenset[str]) -> str:
    """Say which packages of an extra have releases outside its ranges, and how to get others.

    Returns:
        One line; empty if all fit, or if advsweep is on the path without being installed, so that
        the ranges are unknown.
    """
    try:
        required = required_by(extra)
    except importlib.metadata.PackageNotFoundError:
        return ""
    needed = []
    for requirement in required:
        if requirement.name in names and _is_installed(requirement.name):
            needed.append(requirement)
    unmet = packages.missing(needed)[1]
    return f"{describe_unmet(unmet)}: {packages.install_command(unmet)}" if unmet else ""


def _is_installed(name: str) -> bool:
    try:
        importlib.metadata.version(name)
    except importlib.metadata.PackageNotFoundError:
        return False
    return True


def end_completions(trainer: Any, marks: Sequence[int]) -> None:
    """Let every end mark end the completions of a GRPOTrainer, as from release 1.14 on."""
    if not hasattr(trainer, "eos_token_ids"):
        trainer.eos_token_ids = list(marks)
        trainer.generation_config.eos_token_id = list(marks)


def differentiate_entropies(trainer: Any) -> None:
    """Let the entropies of a GRPOTrainer's forward pass have a gradient, as from 1.15 on.

    Its own loss, which must be replaced, would take the setting for an entropy bonus.
    """
    trainer._entropy_bonus_enabled = True
