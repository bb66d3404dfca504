"""The countdown task: problems, verifier, and the corpus that a base model is trained on.

A problem's key is its multiset of digits and its target; the key decides which part the problem
belongs to, see `advsweep.tasks.parts`.
"""

from __future__ import annotations

import functools
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from enum import Enum
from typing import TYPE_CHECKING, ClassVar

import numpy as np

from advsweep.components import Plain, option
from advsweep.tasks.base import (
    CorpusShares,
    Problem,
    SeededTask,
    Split,
    SymbolTask,
    TaskSeed,
)
from advsweep.tasks.countdown import expressions
from advsweep.tasks.countdown.expressions import evaluate, signatures
from advsweep.tasks.countdown.guessing import guess_floor
from advsweep.tasks.floors import Floor
from advsweep.tasks.levels import choose_levels, choose_train_levels
from advsweep.tasks.parts import Part, belongs

if TYPE_CHECKING:
    from jaxtyping import Bool, Int

    from advsweep.tasks.base import PerCompletion

    Expressions = tuple[Int[np.ndarray, "rows m"], Int[np.ndarray, "rows m-1"]]

TARGETS = 100


@dataclass(frozen=True)
class Level:
    """A difficulty: the number of digits, and of operators from which targets are made.

    Answers may use every operator at every level.
    """

    numbers: int
    operators: int

    def draw(self, count: int, rng: np.random.Generator) -> Expressions:
        """Draw random expressions over the digits 1 to 9."""
        numbers = rng.integers(1, 10, (count, self.numbers))
        return numbers, rng.integers(0, self.operators, (count, self.numbers - 1))


LEVELS = (
    Level(2, 3),
    Level(3, 2),
    Level(3, 3),
    Level(4, 2),
    Level(4, 3),
    Level(5, 2),
    Level(5, 3),
)


def keys(
    numbers: Int[np.ndarray, "rows m"], targets: Int[np.ndarray, " rows"]
) -> Int[np.ndarray, " rows"]:
    """Return the problems' keys: equal for the same digits in any order and the same target."""
    packed: Int[np.ndarray, " rows"] = signatures(numbers) * TARGETS + targets
    return packed


@dataclass(frozen=True)
class ProblemPool:
    """Solvable problems, each with the expression that made it."""

    numbers: Int[np.ndarray, "rows m"]
    operators: Int[np.ndarray, "rows m-1"]
    targets: Int[np.ndarray, " rows"]
    keys: Int[np.ndarray, " rows"]

    def __getitem__(self, rows: np.ndarray | slice) -> ProblemPool:
        return ProblemPool(
            self.numbers[rows], self.operators[rows], self.targets[rows], self.keys[rows]
        )


def make_pool(level: Level, candidates: int, rng: np.random.Generator) -> ProblemPool:
    """Return the distinct problems among random expressions, in order of appearance."""
    numbers, operators = level.draw(candidates, rng)
    values = evaluate(numbers, operators)
    inside = (values >= 0) & (values < TARGETS)
    numbers, operators, values = numbers[inside], operators[inside], values[inside]
    key = keys(numbers, values)
    first = np.sort(np.unique(key, return_index=True)[1])
    return ProblemPool(numbers, operators, values, key)[first]


_CANDIDATES = 40_000
_PARTS = {Split.TRAIN: Part.TRAIN, Split.HELD_OUT: Part.HELD_OUT}


class _Answer(Enum):
    """How an answer of the pretraining corpus relates to its prompt."""

    RANDOM = 0
    LEFT_TO_RIGHT = 1
    CORRECT = 2


@dataclass(kw_only=True)
class Countdown(SeededTask, SymbolTask):
    """Write an expression over exactly the given digits that comes to the target.

    The prompt `34=07:` means: make 7 from 3 and 4; `3+4` and `4+3` are correct. Answers use
    `+`, `-` and `*` with the usual precedence, each given digit once, no parentheses and no
    numbers of several digits. Levels 0 to 6 have 2, 3, 3, 4, 4, 5, 5 digits; their targets
    come from random expressions, without `*` at levels 1, 3 and 5.
    """

    name: ClassVar[str] = "countdown"
    alphabet: ClassVar[str] = expressions.ALPHABET
    corpus_shares: ClassVar[CorpusShares] = CorpusShares(random=0.1, mistaken=0.6)

    levels: tuple[int, ...] = option(
        tuple(range(len(LEVELS))), ge=0, le=len(LEVELS) - 1, help="difficulty levels in use"
    )
    train_levels: tuple[int, ...] | None = option(
        None,
        ge=0,
        le=len(LEVELS) - 1,
        absent=None,
        help="those of them that are trained; null: all. Held out are all of them",
    )
    held_out_per_level: int = option(20, ge=1, le=25, help="held-out problems of each level")
    train_per_level: int = option(
        2000, ge=1, help="training problems of each level, fewer where there are fewer"
    )
    seed: int | TaskSeed = option(
        0,
        ge=0,
        help="chooses the problems within their fixed parts; seed: that of the run, so that each "
        "seed has problems of its own",
    )

    def __post_init__(self) -> None:
        super().__post_init__()
        self.levels = choose_levels(self.levels, len(LEVELS))
        self.train_levels = choose_train_levels(self.train_levels, self.levels)

    @property
    def max_prompt_length(self) -> int:
        return max(LEVELS[level].numbers for level in self.levels) + len("=00:")

    @property
    def max_completion_length(self) -> int:
        return 2 * max(LEVELS[level].numbers for level in self.levels)

    def problems(self, split: Split) -> Sequence[Problem]:
        return [problem for level in self._problems[split] for problem in level]

    def draw(self, count: int, rng: np.random.Generator) -> list[Problem]:
        pools = self._problems[Split.TRAIN]
        levels = rng.integers(len(pools), size=count)
        rows = rng.integers(np.array([len(pool) for pool in pools])[levels])
        return [
            pools[level][row] for level, row in zip(levels.tolist(), rows.tolist(), strict=True)
        ]

    def score(self, problems: Sequence[Problem], completions: Sequence[str]) -> PerCompletion:
        read = expressions.read(completions)
        targets = np.fromiter((p.reference["target"] for p in problems), np.int64, len(problems))
        right = self._uses_digits(problems, read)
        right &= read.value == targets
        return right.astype(np.float64)

    def answers(self, problems: Sequence[Problem], completions: Sequence[str]) -> list[str | None]:
        readable = self._uses_digits(problems, expressions.read(completions)).tolist()
        return [text if ok else None for text, ok in zip(completions, readable, strict=True)]

    def pretraining_pairs(
        self,
        count: int,
        rng: np.random.Generator,
        *,
        shares: CorpusShares | None = None,
    ) -> tuple[list[str], list[str]]:
        """Return prompts and answers; targets are random, computed left to right, or correct."""
        levels = rng.choice(self.levels, size=count)
        random, mistaken = shares or self.corpus_shares
        kinds = rng.choice(3, size=count, p=[random, mistaken, 1 - random - mistaken])
        prompts, answers = np.empty(count, dtype=object), np.empty(count, dtype=object)
        for level in self.levels:
            for kind in _Answer:
                rows = np.flatnonzero((levels == level) & (kinds == kind.value))
                prompts[rows], answers[rows] = _corpus(LEVELS[level], kind, len(rows), rng)
        return prompts.tolist(), answers.tolist()

    def corpus_identity(self) -> Plain:
        identity = self.identity()
        return {key: identity[key] for key in ("name", "revision", "levels")}

    def floors(self, split: Split = Split.HELD_OUT) -> Mapping[str, Floor]:
        """Return the exact floor `guess`: uniform expressions over the given digits."""
        return {"guess": guess_floor(self.problems(split))}

    def _uses_digits(
        self, problems: Sequence[Problem], read: expressions.Read
    ) -> Bool[np.ndarray, " completions"]:
        expected = np.fromiter(
            (p.reference["signature"] for p in problems), np.int64, len(problems)
        )
        uses: Bool[np.ndarray, " completions"] = read.well_formed & (read.signature == expected)
        return uses

    @functools.cached_property
    def _problems(self) -> dict[Split, list[list[Problem]]]:
        """The problems of each split, by level."""
        found: dict[Split, list[list[Problem]]] = {split: [] for split in Split}
        held_out = np.empty(0, dtype=np.int64)
        for level in self.levels:
            rng = np.random.default_rng([self.own_seed, level])
            pool = make_pool(LEVELS[level], _CANDIDATES, rng)
            for split, part in _PARTS.items():
                chosen = pool[belongs(pool.keys, part)]
                if split is Split.HELD_OUT:
                    # Levels with the same number of digits can share a problem; evaluate it once.
                    chosen = chosen[~np.isin(chosen.keys, held_out)][: self.held_out_per_level]
                    assert len(chosen.keys) == self.held_out_per_level
                    held_out = np.concatenate([held_out, chosen.keys])
                else:
                    chosen = chosen[: self.train_per_level]
                # Also where the level is not trained: held-out prompts depend on these draws.
                problems = _make_problems(level, chosen, rng)
                if split is Split.HELD_OUT or level in (self.train_levels or self.levels):
                    found[split].append(problems)
        return found


def _make_problems(level: int, pool: ProblemPool, rng: np.random.Generator) -> list[Problem]:
    prompts = expressions.write_prompts(rng.permuted(pool.numbers, axis=1), pool.targets)
    sorted_prompts = expressions.write_prompts(np.sort(pool.numbers, axis=1), pool.targets)
    solutions = expressions.write(pool.numbers, pool.operators)
    signatures = expressions.signatures(pool.numbers).tolist()
    targets = pool.targets.tolist()
    return [
        Problem(
            id=f"{level}/{sorted_prompt[:-1]}",
            prompt=prompt,
            level=level,
            reference={"signature": signature, "target": target, "solution": solution},
        )
        for sorted_prompt, prompt, signature, target, solution in zip(
            sorted_prompts, prompts, signatures, targets, solutions, strict=True
        )
    ]


def _corpus(
    level: Level, kind: _Answer, count: int, rng: np.random.Generator
) -> tuple[list[str], list[str]]:
    """Return pretraining prompts of one level and their answers of one kind."""
    prompts: list[str] = []
    answers: list[str] = []
    while len(prompts) < count:
        numbers, operators = level.draw(5 * (count - len(prompts)) + 64, rng)
        targets = _targets(kind, numbers, operators, rng)
        inside = (targets >= 0) & (targets < TARGETS)
        inside &= belongs(keys(numbers, targets), Part.PRETRAINING)
        rows = np.flatnonzero(inside)[: count - len(prompts)]
        shuffled = rng.permuted(numbers[rows], axis=1)
        prompts += expressions.write_prompts(shuffled, targets[rows])
        answers += expressions.write(numbers[rows], operators[rows])
    return prompts, answers


def _targets(
    kind: _Answer,
    numbers: Int[np.ndarray, "rows m"],
    operators: Int[np.ndarray, "rows m-1"],
    rng: np.random.Generator,
) -> Int[np.ndarray, " rows"]:
    if kind is _Answer.RANDOM:
        return rng.integers(0, TARGETS, len(numbers))
    if kind is _Answer.LEFT_TO_RIGHT:
        return expressions.evaluate_left_to_right(numbers, operators)
    return expressions.evaluate(numbers, operators)
