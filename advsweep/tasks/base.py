"""The contract of a task: problems with levels, and the verifier that scores answers."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from enum import Enum
from typing import TYPE_CHECKING, Any, ClassVar, Protocol

import numpy as np

from advsweep.components import Component, Plain

if TYPE_CHECKING:
    from jaxtyping import Float

    # One number per completion.
    PerCompletion = Float[np.ndarray, " completions"]


class Split(Enum):
    """The disjoint parts of a task's problems."""

    TRAIN = "train"
    HELD_OUT = "held_out"


@dataclass(frozen=True)
class Problem:
    """One prompt with what its verifier needs.

    Attributes:
        id: stable name of the problem within its task, such as `3/3477=18`.
        prompt: the text that the model is given.
        level: difficulty level.
        reference: the reference answer, with which the verifier compares. `solution` holds a
            correct completion where one is known.
        system: the system message before the prompt, for models that take conversations; for
            other models a text before the prompt. Empty: none.
    """

    id: str
    prompt: str
    level: int
    reference: Mapping[str, Any] = field(default_factory=dict, compare=False)
    system: str = ""

    @property
    def messages(self) -> list[dict[str, str]]:
        """What a model is given that takes conversations, before its chat template."""
        system = [{"role": "system", "content": self.system}] if self.system else []
        return [*system, {"role": "user", "content": self.prompt}]

    @property
    def text(self) -> str:
        """What any other model is given."""
        return f"{self.system}\n\n{self.prompt}" if self.system else self.prompt


@dataclass(frozen=True)
class Completions:
    """Sampled answers to some problems, and what the sampler knows of its uncertainty.

    Attributes:
        texts: `texts[i][j]` is the j-th completion of the i-th problem, end mark removed.
        token_entropy: mean exact entropy per generated token of each problem's completions,
            in nats, at the sampling temperature; None where the sampler cannot tell.
    """

    texts: Sequence[Sequence[str]]
    token_entropy: Float[np.ndarray, " problems"] | None = None


class Sampler(Protocol):
    """Weights that answer problems; what a backend hands to an evaluation."""

    def sample(
        self, problems: Sequence[Problem], n: int, *, temperature: float, seed: int
    ) -> Completions:
        """Draws n completions per problem; the same seed gives the same completions."""
        ...


class Task(Component):
    """Problems and their verifier."""

    @property
    def label(self) -> str:
        """What reports call it."""
        return self.name

    @property
    def reward_range(self) -> tuple[float, float]:
        """The least and the greatest reward that a rollout can get."""
        return 0.0, 1.0

    @property
    def is_binary(self) -> bool:
        """Whether every reward is 0 or 1."""
        return True

    @property
    def is_shaped(self) -> bool:
        """Whether rewards differ from the outcomes that `score` gives."""
        return False

    @property
    def has_system_messages(self) -> bool:
        """Whether problems have a message of the system beside their prompt."""
        return False

    def protocol(self) -> Plain:
        """What can be chosen of the task, beside its problems, that changes how answers count.

        Short texts by name, which evaluations keep; empty where nothing can be chosen.
        """
        return {}

    @property
    def can_train(self) -> bool:
        """Whether there are training problems; some sets are there to evaluate with."""
        return True

    def absent(self) -> tuple[str, ...]:
        """Data of its problems that is not on this machine, as `key=place`; nothing is fetched."""
        return ()

    def check(self) -> None:
        """Refuses problems that cannot be used; called before anything starts.

        Raises:
            ConfigError: names the key, what was expected of it and what was got.
        """

    def check_consent(self) -> None:
        """Refuses to verify by running what a model wrote, without the user's consent.

        It is apart from `check`, as plans, exports and the like run nothing.

        Raises:
            ConfigError: the message names the option that gives it.
        """

    @abstractmethod
    def problems(self, split: Split) -> Sequence[Problem]:
        """Every problem of a split, in a fixed order; splits share no problem."""

    @abstractmethod
    def score(self, problems: Sequence[Problem], completions: Sequence[str]) -> PerCompletion:
        """Rewards of completions, one problem each: 1 correct, 0 wrong, NaN unscorable."""

    def rewards(
        self, completions: Sequence[str], outcomes: PerCompletion, lengths: PerCompletion
    ) -> PerCompletion:
        """What a training rewards completions with; an evaluation counts outcomes alone.

        Args:
            outcomes: what `score` gave; NaN stays NaN.
            lengths: of the completions, in tokens, the end mark included.
        """
        return outcomes

    @abstractmethod
    def answers(
        self, problems: Sequence[Problem], completions: Sequence[str]
    ) -> Sequence[str | None]:
        """The canonical answer in each completion; None where there is none to be read."""

    def forged(self, problems: Sequence[Problem], completions: Sequence[str]) -> list[bool] | None:
        """Which completions passed what nothing can pass, and are wrong for that.

        None where the task has no such control. It is quick for what `score` was called with last.
        """
        return None

    @abstractmethod
    def draw(self, count: int, rng: np.random.Generator) -> Sequence[Problem]:
        """Training problems for one step, drawn at random."""


class SymbolTask(Task):
    """A task over a small alphabet, from which a tiny model can be trained from nothing.

    Every character of a prompt or a completion is one token; character `alphabet[i]` has
    the id i, and two marks follow.
    """

    alphabet: ClassVar[str]

    @property
    def eos_id(self) -> int:
        """The mark that ends a completion."""
        return len(self.alphabet)

    @property
    def pad_id(self) -> int:
        """Fills batches; never part of a prompt or a completion."""
        return len(self.alphabet) + 1

    @property
    def vocabulary_size(self) -> int:
        return len(self.alphabet) + 2

    @property
    @abstractmethod
    def max_prompt_length(self) -> int:
        """The longest prompt, in tokens."""

    @property
    @abstractmethod
    def max_completion_length(self) -> int:
        """The longest answer, in tokens, its end mark included."""

    @abstractmethod
    def pretraining_pairs(
        self,
        count: int,
        rng: np.random.Generator,
        *,
        random_share: float,
        left_to_right_share: float,
    ) -> tuple[list[str], list[str]]:
        """Prompts and answers of an imperfect corpus; no prompt is in any split.

        Args:
            random_share: share of answers that have nothing to do with their prompt.
            left_to_right_share: share of answers computed with a misconception.
        """
