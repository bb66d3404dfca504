"""The base classes of tasks: problems with difficulty levels, and the scoring of answers."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from enum import Enum
from typing import TYPE_CHECKING, Any, ClassVar, Literal, NamedTuple, Protocol, Self

import numpy as np

from advsweep.components import Component, Plain, identity_of
from advsweep.errors import ConfigError

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
    """One prompt with its reference answer.

    Attributes:
        id: stable name of the problem within its task, such as `3/3477=18`.
        prompt: the text for the model.
        level: difficulty level.
        reference: the reference answer, with which the verifier compares. `solution` holds a
            correct completion where one is known.
        system: the system message before the prompt, for models that take conversations; for
            other models a text before the prompt. Empty: none.
        row: number of its row in the data, from 1; 0 for a problem that was made.
        columns: of its row, which an environment begins an episode with.
    """

    id: str
    prompt: str
    level: int
    reference: Mapping[str, Any] = field(default_factory=dict, compare=False)
    system: str = ""
    row: int = field(default=0, compare=False)
    columns: Mapping[str, Any] = field(default_factory=dict, compare=False)

    @property
    def messages(self) -> list[dict[str, str]]:
        """The conversation for a chat model, before its chat template is applied."""
        system = [{"role": "system", "content": self.system}] if self.system else []
        return [*system, {"role": "user", "content": self.prompt}]

    @property
    def text(self) -> str:
        """The plain text for any other model."""
        return f"{self.system}\n\n{self.prompt}" if self.system else self.prompt


@dataclass(frozen=True)
class Completions:
    """Sampled answers to some problems, and the sampler's entropy.

    Attributes:
        texts: `texts[i][j]` is the j-th completion of the i-th problem, end mark removed.
        token_entropy: mean exact entropy per generated token of each problem's completions,
            in nats, at the sampling temperature; None if the sampler does not compute it.
        kl_base: KL(policy ‖ base model) of an answer to each problem, in nats, at the sampling
            temperature; None if the sampler does not compute it.
        verdicts: those of the environments that have answered the model; None: the task scores
            the texts.
    """

    texts: Sequence[Sequence[str]]
    token_entropy: Float[np.ndarray, " problems"] | None = None
    kl_base: Float[np.ndarray, " problems"] | None = None
    verdicts: Float[np.ndarray, "problems n"] | None = None

    def verdicts_by(
        self, task: Task, problems: Sequence[Problem]
    ) -> Float[np.ndarray, "problems n"]:
        """Return the verdicts of the completions, which a task scores unless they have some.

        Args:
            problems: those that the completions answer.
        """
        if self.verdicts is not None:
            return self.verdicts
        n = len(self.texts[0])
        repeated = [problem for problem in problems for _ in range(n)]
        texts = [text for of_problem in self.texts for text in of_problem]
        return task.score(repeated, texts).reshape(len(problems), n)


@dataclass(frozen=True)
class Floor:
    """An answerer that has learnt nothing, whose draws are independent.

    Attributes:
        name: such as `guess` or `walker`.
        help: what it does, in a few words.
        rates: by the id of a problem, the probability that one draw is right.
        standard_error: the largest standard error of a rate; 0 if the rates are exact.
    """

    name: str
    help: str
    rates: Mapping[str, float]
    standard_error: float = 0.0

    def pass_at(self, k: int, problems: Iterable[str]) -> Float[np.ndarray, " problems"]:
        """Return pass@k = 1 - (1 - p)ᵏ of some problems.

        Args:
            problems: ids of problems.

        Raises:
            KeyError: the floor has no rate of a problem.
        """
        rates = np.array([self.rates[problem] for problem in problems], dtype=np.float64)
        # log1p keeps small rates exact.
        with np.errstate(divide="ignore"):
            passed: Float[np.ndarray, " problems"] = -np.expm1(k * np.log1p(-rates))
        return passed


class Sampler(Protocol):
    """Samples answers to problems from a model; each backend implements one for evaluations."""

    def sample(
        self, problems: Sequence[Problem], n: int, *, temperature: float, seed: int
    ) -> Completions:
        """Draw n completions per problem; the same seed gives the same completions."""
        ...


class Task(Component):
    """Problems and their verifier.

    A subclass implements `problems`, `draw`, `score` and `answers`; the other methods have
    defaults that fit a task whose rewards are its verdicts. Tests and the exports
    write a problem's known solution, `reference["solution"]`. A task that a tiny model can be
    trained on from scratch is a `SymbolTask`.

    Attributes:
        provides: fields of `GroupBatch` that the task adds to those of the backend.
        has_environment: whether an environment of the user's answers the model in turns, as an
            `EnvironmentTask` has it.
    """

    provides: ClassVar[frozenset[str]] = frozenset()
    has_environment: ClassVar[bool] = False

    @property
    def label(self) -> str:
        """The name of the task in reports."""
        return self.name

    @property
    def reward_range(self) -> tuple[float, float]:
        """The least and greatest possible reward of a rollout."""
        return 0.0, 1.0

    @property
    def reward_remedy(self) -> str:
        """What a user can do who needs other rewards, as the end of a message."""
        return "change their weights, or reward accuracy"

    @property
    def is_binary(self) -> bool:
        """Whether every reward is 0 or 1."""
        return True

    @property
    def is_text(self) -> bool:
        """Whether a language model can read the problems and write answers."""
        return True

    @property
    def is_shaped(self) -> bool:
        """Whether rewards differ from the verdicts of `score`."""
        return False

    @property
    def rewards_verdicts(self) -> bool:
        """Whether rewards are made of the verdicts of `score`, and not of the answers alone."""
        return True

    @property
    def delimiters(self) -> tuple[str, ...]:
        """Texts that rewards look for in completions."""
        return ()

    @property
    def part_weights(self) -> tuple[float, ...]:
        """The weights of the parts whose sum is the reward."""
        return (1.0,)

    @property
    def has_system_messages(self) -> bool:
        """Whether problems have a system message besides their prompt."""
        return False

    def protocol(self) -> Plain:
        """Return the settings, other than the problems, that change how answers count.

        Evaluations store these short texts by name. The result is empty if there are none.
        """
        return {}

    @property
    def can_train(self) -> bool:
        """Whether there are training problems; some sets are for evaluation only."""
        return True

    def for_seed(self, seed: int) -> Self:
        """Return the task of a run with this seed; the task itself if all seeds share it."""
        return self

    def for_completions(self, max_tokens: int) -> Self:
        """Return the task of a run whose completions have at most `max_tokens` tokens.

        Raises:
            ConfigError: its rewards do not fit that length.
        """
        return self

    def absent(self) -> tuple[str, ...]:
        """Return data that is missing on this machine, as `key=place`, without downloading."""
        return ()

    def check(self) -> None:
        """Refuse problems that cannot be used; called before anything starts.

        Raises:
            ConfigError: the message names the key, what was expected and what was got.
        """

    def check_consent(self) -> None:
        """Refuse to run programs that a model wrote without the user's consent.

        `check` does not include this, because plans, exports and the like run no programs.

        Raises:
            ConfigError: the message names the option that gives consent.
        """

    @abstractmethod
    def problems(self, split: Split) -> Sequence[Problem]:
        """Return all problems of a split in a fixed order; splits share no problem."""

    @abstractmethod
    def score(self, problems: Sequence[Problem], completions: Sequence[str]) -> PerCompletion:
        """Return verdicts of completions: 1 correct, 0 wrong, NaN unscorable.

        Args:
            problems: the problem of each completion; a problem comes several times.
            completions: texts that a model wrote, which may be of any form and length.
        """

    def rewards(
        self, completions: Sequence[str], verdicts: PerCompletion, lengths: PerCompletion
    ) -> PerCompletion:
        """Return the rewards of completions in a training; evaluations count only verdicts.

        Args:
            verdicts: the result of `score`; NaN stays NaN.
            lengths: lengths of the completions in tokens, including the end mark.
        """
        return verdicts

    def reward_parts(
        self, completions: Sequence[str], verdicts: PerCompletion, lengths: PerCompletion
    ) -> Float[np.ndarray, "completions parts"]:
        """Return the parts of the rewards, before `part_weights`; NaN for unscorable ones."""
        return self.rewards(completions, verdicts, lengths)[:, None]

    @abstractmethod
    def answers(
        self, problems: Sequence[Problem], completions: Sequence[str]
    ) -> Sequence[str | None]:
        """Return the canonical answer in each completion; None if there is no readable one."""

    @abstractmethod
    def draw(self, count: int, rng: np.random.Generator) -> Sequence[Problem]:
        """Draw training problems for one step at random.

        Args:
            rng: the only source of randomness, so that a resumed run draws the same problems.
        """

    def floors(self, split: Split = Split.HELD_OUT) -> Mapping[str, Floor]:
        """Return by name what answerers without skill achieve on the problems of a split.

        `guess` draws uniformly among well-formed answers. The result is empty for tasks that
        cannot compute floors.
        """
        return {}


# The run's own seed: runs of one seed share their task, and seeds replicate it.
TaskSeed = Literal["seed"]


class SeededTask(Task):
    """A task that its option `seed` draws at random."""

    seed: int | TaskSeed

    def for_seed(self, seed: int) -> Self:
        if isinstance(self.seed, int):
            return self
        return self.build({**self.plain(), "seed": seed})

    @property
    def own_seed(self) -> int:
        """The seed that draws the task.

        Raises:
            ConfigError: it is that of a run; `for_seed` returns the task of a run.
        """
        if isinstance(self.seed, int):
            return self.seed
        raise ConfigError(
            "task.seed: expected an integer for a task without a run, got 'seed'; choose one, "
            "such as seed=0"
        )


class CorpusShares(NamedTuple):
    """Shares of the mistaken answers in a pretraining corpus; all others are right.

    Attributes:
        random: answers that are unrelated to their prompt.
        mistaken: answers with the task's systematic mistake.
    """

    random: float
    mistaken: float


class SymbolTask(Task):
    """A task over a small alphabet, on which a tiny model can be trained from scratch.

    Every character of a prompt or a completion is one token. Character `alphabet[i]` has id i;
    the end mark and the padding follow.
    """

    alphabet: ClassVar[str]
    map_seed = 0
    """Draws what models learn of the task in their pretraining, if it is drawn; no option."""
    corpus_shares: ClassVar[CorpusShares]
    """The shares of mistaken answers in the corpus, unless a model's recipe has others."""

    @property
    def eos_id(self) -> int:
        """The id of the mark that ends a completion."""
        return len(self.alphabet)

    @property
    def pad_id(self) -> int:
        """The id of the padding, which is never part of a prompt or a completion."""
        return len(self.alphabet) + 1

    @property
    def vocabulary_size(self) -> int:
        return len(self.alphabet) + 2

    @property
    @abstractmethod
    def max_prompt_length(self) -> int:
        """Length of the longest prompt in tokens."""

    @property
    @abstractmethod
    def max_completion_length(self) -> int:
        """Length of the longest answer in tokens, including its end mark."""

    @abstractmethod
    def pretraining_pairs(
        self,
        count: int,
        rng: np.random.Generator,
        *,
        shares: CorpusShares | None = None,
    ) -> tuple[list[str], list[str]]:
        """Return prompts and answers of an imperfect corpus; no prompt is in any split.

        Args:
            shares: shares of mistaken answers; None: `corpus_shares`.
        """

    def corpus_identity(self) -> Plain:
        """Return what can change the corpus, and so a base model that is pretrained on it.

        Tasks leave out the options that choose training and held-out problems only. They then
        share base models.
        """
        return identity_of(self)
