"""Countdown: reach a target with the given digits, each used once.

A problem's key is its multiset of digits and its target; the key decides which part the problem
belongs to. An expression of m digits is a row of m numbers and a row of m - 1 operators; operators
are indices into `OPERATORS`.
"""

from __future__ import annotations

import functools
import itertools
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from enum import Enum
from typing import TYPE_CHECKING, ClassVar

import numpy as np

from advsweep.components import Plain, option
from advsweep.tasks.base import (
    CorpusShares,
    Floor,
    Problem,
    SeededTask,
    Split,
    SymbolTask,
    TaskSeed,
)
from advsweep.tasks.generated import (
    Part,
    belongs,
    choose_levels,
    choose_train_levels,
    draw_over_levels,
)

if TYPE_CHECKING:
    from jaxtyping import Bool, Float, Int, UInt8, UInt32

    from advsweep.tasks.base import PerCompletion

    Numbers = Int[np.ndarray, "rows m"]
    Operators = Int[np.ndarray, "rows m-1"]
    Ints = Int[np.ndarray, " rows"]
    Flags = Bool[np.ndarray, " rows"]


ALPHABET = "0123456789+-*=:"
OPERATORS = "+-*"
MAX_NUMBERS = 5
MAX_LENGTH = 2 * MAX_NUMBERS - 1

_PLUS, _MINUS, _TIMES = range(3)
_FIRST_OPERATOR = ALPHABET.index("+")
_FOREIGN = 255
_CODES = np.full(129, _FOREIGN, dtype=np.uint8)
_CODES[[ord(c) for c in ALPHABET]] = range(len(ALPHABET))
_POINTS = np.array([ord(c) for c in OPERATORS], dtype=np.uint32)


def encode(texts: Sequence[str], width: int) -> tuple[UInt8[np.ndarray, "texts width"], Ints]:
    """Return the characters as indices into `ALPHABET`, and the lengths of the texts.

    Other characters become 255, as do places past a text's end. Texts are cut off at `width`;
    the lengths are those before.
    """
    lengths = np.fromiter(map(len, texts), np.int64, len(texts))
    points = np.array(texts, dtype=f"U{width}").view(np.uint32).reshape(len(texts), width)
    return _CODES[np.minimum(points, 128)], lengths


def signatures(numbers: Numbers) -> Ints:
    """Return one integer per multiset of digits; four bits count each digit (m at most 15)."""
    counts: Ints = (np.int64(1) << (4 * numbers.astype(np.int64))).sum(axis=1)
    return counts


def evaluate(numbers: Numbers, operators: Operators) -> Ints:
    """Evaluate with multiplication before addition and subtraction."""
    total = np.zeros(len(numbers), dtype=np.int64)
    term = numbers[:, 0].astype(np.int64)
    for operator, number in zip(operators.T, numbers.T[1:], strict=True):
        times = operator == _TIMES
        total += np.where(times, 0, term)
        sign = np.where(operator == _MINUS, -1, 1)
        term = np.where(times, term, sign) * number
    value: Ints = total + term
    return value


def evaluate_left_to_right(numbers: Numbers, operators: Operators) -> Ints:
    """Evaluate without precedence, from left to right."""
    value = numbers[:, 0].astype(np.int64)
    for operator, number in zip(operators.T, numbers.T[1:], strict=True):
        value = np.select(
            [operator == _PLUS, operator == _MINUS],
            [value + number, value - number],
            value * number,
        )
    return value


@dataclass(frozen=True)
class Read:
    """Completions read as expressions.

    Attributes:
        well_formed: digits and operators alternate, with a digit first and last.
        signature: the digits used; meaningless where not well-formed.
        value: the value of the expression; meaningless where not well-formed.
    """

    well_formed: Flags
    signature: Ints
    value: Ints


def read(texts: Sequence[str]) -> Read:
    """Read completions as expressions of at most `MAX_NUMBERS` digits."""
    codes, lengths = encode(texts, MAX_LENGTH)
    digits, operators = codes[:, ::2], codes[:, 1::2] - np.uint8(_FIRST_OPERATOR)
    places = np.arange(MAX_LENGTH)
    past = places >= lengths[:, None]
    past_digits, past_operators = past[:, ::2], past[:, 1::2]
    well_formed = (
        ((digits <= 9) | past_digits).all(axis=1)
        & ((operators < len(OPERATORS)) | past_operators).all(axis=1)
        & (lengths % 2 == 1)
        & (lengths <= MAX_LENGTH)
    )
    # Pad short expressions with "+0", which does not change their value.
    digits = np.where((digits <= 9) & ~past_digits, digits, 0)
    operators = np.where(past_operators, _PLUS, operators)
    zeros = past_digits.sum(axis=1)
    return Read(well_formed, signatures(digits) - zeros, evaluate(digits, operators))


def write(numbers: Numbers, operators: Operators) -> list[str]:
    """Return the expressions as texts."""
    points = np.empty((len(numbers), 2 * numbers.shape[1] - 1), dtype=np.uint32)
    points[:, ::2] = numbers + ord("0")
    points[:, 1::2] = _POINTS[operators]
    return to_texts(points)


def write_prompts(numbers: Numbers, targets: Ints) -> list[str]:
    """Return the prompts with these digits, in this order, and these targets in 0..99."""
    rows, m = numbers.shape
    points = np.empty((rows, m + 4), dtype=np.uint32)
    points[:, :m] = numbers + ord("0")
    points[:, m] = ord("=")
    points[:, m + 1] = targets // 10 + ord("0")
    points[:, m + 2] = targets % 10 + ord("0")
    points[:, m + 3] = ord(":")
    return to_texts(points)


def to_texts(points: UInt32[np.ndarray, "rows width"]) -> list[str]:
    """Return rows of code points as texts of that width."""
    texts: list[str] = points.view(f"U{points.shape[1]}").ravel().tolist()
    return texts


_TARGETS = 100


def guess_floor(problems: Sequence[Problem]) -> Floor:
    """Return the exact floor of uniform expressions over a problem's digits.

    The order of the digits and the operators are uniform, which makes all different expressions
    equally likely, also with repeated digits.
    """
    digits = [tuple(sorted(map(int, p.prompt.partition("=")[0]))) for p in problems]
    shares = {m: _shares(m) for m in {len(row) for row in digits}}
    rates = {}
    for problem, row in zip(problems, digits, strict=True):
        rows, table = shares[len(row)]
        rates[problem.id] = float(table[rows[row], problem.reference["target"]])
    return Floor("guess", "uniform expressions over the given digits", rates)


@functools.cache
def _shares(
    m: int,
) -> tuple[dict[tuple[int, ...], int], Float[np.ndarray, "multisets targets"]]:
    """Return, for each multiset of m digits 1 to 9, the share of expressions with each value.

    Returns:
        The row of each multiset, given as sorted digits, and the shares.
    """
    multisets = list(itertools.combinations_with_replacement(range(1, 10), m))
    # Every tuple of digits is one order of its multiset.
    tuples = np.indices((9,) * m).reshape(m, -1).T + 1
    known = signatures(np.array(multisets))
    order = np.argsort(known)
    row = order[np.searchsorted(known[order], signatures(tuples))]
    counts = np.zeros((len(multisets), _TARGETS))
    for operators in itertools.product(range(len(OPERATORS)), repeat=m - 1):
        values = evaluate(tuples, np.broadcast_to(operators, (len(tuples), m - 1)))
        inside = (values >= 0) & (values < _TARGETS)
        flat = row[inside] * _TARGETS + values[inside]
        counts += np.bincount(flat, minlength=counts.size).reshape(counts.shape)
    expressions = np.bincount(row, minlength=len(multisets)) * len(OPERATORS) ** (m - 1)
    return {digits: i for i, digits in enumerate(multisets)}, counts / expressions[:, None]


TARGETS = 100


@dataclass(frozen=True)
class Level:
    """A difficulty: the number of digits, and of operators from which targets are made.

    Answers may use every operator at every level.
    """

    numbers: int
    operators: int

    def draw(self, count: int, rng: np.random.Generator) -> tuple[Numbers, Operators]:
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


def keys(numbers: Numbers, targets: Ints) -> Ints:
    """Return the problems' keys: equal for the same digits in any order and the same target."""
    packed: Ints = signatures(numbers) * TARGETS + targets
    return packed


@dataclass(frozen=True)
class ProblemPool:
    """Solvable problems, each with the expression that made it."""

    numbers: Numbers
    operators: Operators
    targets: Ints
    keys: Ints

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
    alphabet: ClassVar[str] = ALPHABET
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
        return draw_over_levels(self._problems[Split.TRAIN], count, rng)

    def score(self, problems: Sequence[Problem], completions: Sequence[str]) -> PerCompletion:
        found = read(completions)
        targets = np.fromiter((p.reference["target"] for p in problems), np.int64, len(problems))
        right = self._uses_digits(problems, found)
        right &= found.value == targets
        return right.astype(np.float64)

    def answers(self, problems: Sequence[Problem], completions: Sequence[str]) -> list[str | None]:
        readable = self._uses_digits(problems, read(completions)).tolist()
        return [text if ok else None for text, ok in zip(completions, readable, strict=True)]

    def pretraining_pairs(
        self, count: int, rng: np.random.Generator, *, shares: CorpusShares | None = None
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

    def _uses_digits(self, problems: Sequence[Problem], found: Read) -> Flags:
        expected = np.fromiter(
            (p.reference["signature"] for p in problems), np.int64, len(problems)
        )
        uses: Flags = found.well_formed & (found.signature == expected)
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
    prompts = write_prompts(rng.permuted(pool.numbers, axis=1), pool.targets)
    sorted_prompts = write_prompts(np.sort(pool.numbers, axis=1), pool.targets)
    solutions = write(pool.numbers, pool.operators)
    used = signatures(pool.numbers).tolist()
    targets = pool.targets.tolist()
    return [
        Problem(
            id=f"{level}/{sorted_prompt[:-1]}",
            prompt=prompt,
            level=level,
            reference={"signature": signature, "target": target, "solution": solution},
        )
        for sorted_prompt, prompt, signature, target, solution in zip(
            sorted_prompts, prompts, used, targets, solutions, strict=True
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
        prompts += write_prompts(shuffled, targets[rows])
        answers += write(numbers[rows], operators[rows])
    return prompts, answers


def _targets(
    kind: _Answer,
    numbers: Numbers,
    operators: Operators,
    rng: np.random.Generator,
) -> Ints:
    if kind is _Answer.RANDOM:
        return rng.integers(0, TARGETS, len(numbers))
    if kind is _Answer.LEFT_TO_RIGHT:
        return evaluate_left_to_right(numbers, operators)
    return evaluate(numbers, operators)
