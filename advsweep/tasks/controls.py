"""Controls: arms of a sweep that show how much of a difference is noise, or needs no verifier.

They change a training alone. Evaluations always have the task's own verifier.
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, ClassVar

from advsweep.components import CODE, Component, option
from advsweep.errors import ConfigError
from advsweep.registry import Registry

if TYPE_CHECKING:
    import numpy as np

    from advsweep.tasks.base import PerCompletion

# The key of a run's control, which the configs of other runs lack.
CONTROL = "control"


@dataclass(kw_only=True)
class Control(Component):
    """The default: the run is no control."""

    name: ClassVar[str] = "none"
    title: ClassVar[str] = ""
    """What reports write behind the name of the estimator."""
    changes_verdicts: ClassVar[bool] = False
    """Whether a training sees other verdicts than the verifier's."""

    @property
    def base_samples(self) -> int:
        """The rollouts of the base that estimate its solve rate; 0 if the rate is not needed."""
        return 0

    def rollout_seed(self, seed: int) -> int:
        """Return the seed of a training's rollouts, given that of the run."""
        return seed

    def verdicts(
        self, verdicts: PerCompletion, rng: np.random.Generator, base_rates: PerCompletion | float
    ) -> PerCompletion:
        """Return the verdicts that a training sees, given the verifier's.

        Args:
            verdicts: 1 correct, 0 wrong, NaN unscorable.
            rng: the only source of randomness.
            base_rates: the base's solve rate, of each completion's problem or of all; read where
                `base_samples` is above 0.
        """
        return verdicts


@dataclass(kw_only=True)
class AA(Control):
    """The same run with other rollouts: same base, problems and order of problems.

    Its difference to the run that it repeats is the noise of sampling.
    """

    name: ClassVar[str] = "aa"
    title: ClassVar[str] = "A/A"

    copy: int = option(1, ge=1, help="number of the repetition; each has rollouts of its own")

    def rollout_seed(self, seed: int) -> int:
        digest = hashlib.sha256(f"{seed} {self.copy}".encode()).digest()
        return int.from_bytes(digest[:4], "big")


@dataclass(kw_only=True)
class Placebo(Control):
    """Verdicts drawn at random at the base's solve rate, whatever the answers.

    What it gains is no effect of the verifier (arXiv:2506.10947). The rate is that of the problem
    where the backend knows it exactly (bandit), else one for all training problems, estimated by
    samples of the base.
    """

    name: ClassVar[str] = "placebo"
    title: ClassVar[str] = "placebo"
    changes_verdicts: ClassVar[bool] = True

    rate: float | None = option(
        None, gt=0, lt=1, help="chance of a correct verdict; null: the base's solve rate"
    )
    samples: int = option(
        512, ge=1, help="rollouts of the base, each of a training problem, that estimate its rate"
    )

    @property
    def base_samples(self) -> int:
        return self.samples if self.rate is None else 0

    def verdicts(
        self, verdicts: PerCompletion, rng: np.random.Generator, base_rates: PerCompletion | float
    ) -> PerCompletion:
        rates = base_rates if self.rate is None else self.rate
        return (rng.random(len(verdicts)) < rates).astype(verdicts.dtype)


@dataclass(kw_only=True)
class Noise(Control):
    """A verifier that errs at random: some verdicts are turned over, each time anew.

    Unscorable completions stay unscorable.
    """

    name: ClassVar[str] = "noise"
    title: ClassVar[str] = "verifier noise"
    changes_verdicts: ClassVar[bool] = True

    false_positives: float = option(
        0.1, ge=0, le=1, help="share of wrong completions that are judged correct"
    )
    false_negatives: float = option(
        0.1, ge=0, le=1, help="share of correct completions that are judged wrong"
    )

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.false_positives == self.false_negatives == 0:
            raise ConfigError(
                "false_positives: expected false_positives or false_negatives above 0, got 0 for "
                "both, which is no noise"
            )

    def verdicts(
        self, verdicts: PerCompletion, rng: np.random.Generator, base_rates: PerCompletion | float
    ) -> PerCompletion:
        is_correct = verdicts == 1
        shares = is_correct * self.false_negatives + ~is_correct * self.false_positives
        return abs(verdicts - (rng.random(len(verdicts)) < shares))


# Closed: backends apply exactly these.
CONTROLS: Registry[Control] = Registry(
    "control", dict.fromkeys(("none", "aa", "placebo", "noise"), __name__)
)

# Characters of a label: a store may hold any text.
_LABEL = 80

_TITLES = {control.name: control.title for control in (Control, AA, Placebo, Noise)}


def titled(estimator: str, config: Mapping[str, Any]) -> str:
    """Return an estimator's name as reports have it.

    That is `idea:Halved` for one of a file, and `grpo (placebo)` for a run with a control.

    Args:
        config: the config of the run, as a store has it.
    """
    estimator = _label_of_code(config) or estimator
    node = config.get(CONTROL)
    name = str(node.get("name")) if isinstance(node, Mapping) else Control.name
    title = _TITLES.get(name, name)
    return f"{estimator} ({title})" if title else estimator


def _label_of_code(config: Mapping[str, Any]) -> str:
    """Return what the command line called an estimator of a file or a module; empty for others."""
    node = config.get("estimator")
    code = node.get(CODE) if isinstance(node, Mapping) else None
    label = code.get("label") if isinstance(code, Mapping) else None
    return label[:_LABEL] if isinstance(label, str) else ""
