"""Finds characters of a task that a small tokenizer leaves out, which the model never sees.

Tokenizers of real models write any text as bytes or pieces. One whose words are single characters,
such as that of an exported tiny model, knows these alone: others vanish without an error. Plans
look for them, so `tokenizer.json` is read as it is, without transformers.
"""

from __future__ import annotations

import json
import warnings
from typing import TYPE_CHECKING

import numpy as np

from advsweep.backends.step_changes import evenly_spaced
from advsweep.errors import AdvsweepWarning, first_of
from advsweep.printable import printable_line
from advsweep.tasks.base import Split

if TYPE_CHECKING:
    from advsweep.backends.trl.config import HfModel
    from advsweep.tasks.base import Task

SAMPLED = 100
"""Problems of a split that are looked at."""

_SMALL = 256


def describe_lost_characters(model: HfModel, task: Task) -> list[str]:
    """Describe the characters of some prompts of both splits that the tokenizer leaves out.

    Returns:
        Warnings; empty if nothing is lost, or if the tokenizer cannot be checked.
    """
    try:
        content = json.loads((model.folder / "tokenizer.json").read_text("utf-8"))
        special = {token["content"] for token in content["added_tokens"]}
        known = {*content["model"]["vocab"]} - special
    except (OSError, ValueError, RecursionError, TypeError, KeyError):
        return []  # not ours, or damaged: loading it tells
    if len(known) > _SMALL or any(len(word) > 1 for word in known):
        return []
    held_out = task.problems(Split.HELD_OUT)
    problems = [held_out[row] for row in evenly_spaced(len(held_out), SAMPLED)]
    if task.can_train:
        problems += task.draw(SAMPLED, np.random.default_rng(0))
    prompts = list(dict.fromkeys(problem.text for problem in problems))
    losing = [prompt for prompt in prompts if not known.issuperset(prompt)]
    if not losing:
        return []
    lost = dict.fromkeys(c for c in "".join(losing) if c not in known and not c.isspace())
    return [
        printable_line(
            f"model.path: the tokenizer of {model.path}, which has only {' '.join(sorted(known))}, "
            f"leaves out characters of {len(losing)} of {len(prompts)} sampled prompts, which the "
            f"model does not see: {first_of(lost, 8, ' ')}; take another model, or problems and a "
            f"prompt without them (task.data, task.prompt)"
        )
    ]


def warn_of_lost_characters(model: HfModel, task: Task) -> None:
    """Warn of them, where no plan does."""
    for caution in describe_lost_characters(model, task):
        warnings.warn(caution, AdvsweepWarning, stacklevel=2)
