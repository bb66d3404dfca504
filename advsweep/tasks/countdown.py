"""Countdown: reach a target with the given digits, each used once.

A problem's key is its multiset of digits and its target; the key decides which part the problem
belongs to. An expression of m digits is a row of m numbers and a row of m - 1 operators; operators
are indices into `OPERATORS`.
"""

from __future__ import annotations

import functools
import itertools
import math
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar, NamedTuple

import numpy as np

from advsweep.components import Plain, option
from advsweep.tasks.base import CorpusShares, Floor, Problem, Split
from advsweep.tasks.generated import LEVELS, GeneratedTask, Part, belongs

if TYPE_CHECKING:
    from jaxtyping import Float, Int

    from advsweep.tasks.base import PerCompletion

    Numbers = Int[np.ndarray, "rows m"]
    Operators = Int[np.ndarray, "rows m-1"]
    Ints = Int[np.ndarray, " rows"]


ALPHABET = "0123456789+-*=:"
OPERATORS = "+-*"
TARGETS = 100

_PLUS, _MINUS, _TIMES = range(3)
_EXPRESSION = re.compile(r"[0-9](?:[-+*][0-9]){0,4}")
_TERM = re.compile(r"([-+]?)([0-9*]+)")


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


def value(text: str) -> int:
    """Return the value of an expression, given as a text."""
    total = 0
    for sign, digits in _TERM.findall(text):
        product = math.prod(map(int, digits[::2]))
        if sign == "-":
            total -= product
        else:
            total += product
    return total


def write(numbers: Numbers, operators: Operators) -> list[str]:
    """Return the expressions as texts."""
    texts = []
    for digits, signs in zip(numbers.tolist(), operators.tolist(), strict=True):
        text = str(digits[0])
        for sign, digit in zip(signs, digits[1:], strict=True):
            text += f"{OPERATORS[sign]}{digit}"
        texts.append(text)
    return texts


def write_prompts(numbers: Numbers, targets: Ints) -> list[str]:
    """Return the prompts with these digits, in this order, and these targets in 0..99."""
    rows = zip(numbers.tolist(), targets.tolist(), strict=True)
    return [f"{''.join(map(str, digits))}={target:02d}:" for digits, target in rows]


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
    counts = np.zeros((len(multisets), TARGETS))
    for operators in itertools.product(range(len(OPERATORS)), repeat=m - 1):
        values = evaluate(tuples, np.broadcast_to(operators, (len(tuples), m - 1)))
        inside = (values >= 0) & (values < TARGETS)
        flat = row[inside] * TARGETS + values[inside]
        counts += np.bincount(flat, minlength=counts.size).reshape(counts.shape)
    expressions = np.bincount(row, minlength=len(multisets)) * len(OPERATORS) ** (m - 1)
    return {digits: i for i, digits in enumerate(multisets)}, counts / expressions[:, None]


class Level(NamedTuple):
    """A difficulty: the number of digits, and of operators from which targets are made.

    Answers may use every operator at every level.
    """

    numbers: int
    operators: int

    def draw(self, count: int, rng: np.random.Generator) -> tuple[Numbers, Operators]:
        """Draw random expressions over the digits 1 to 9."""
        numbers = rng.integers(1, 10, (count, self.numbers))
        return numbers, rng.integers(0, self.operators, (count, self.numbers - 1))


DIFFICULTIES = (
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


_CANDIDATES = 40_000
_PARTS = {Split.TRAIN: Part.TRAIN, Split.HELD_OUT: Part.HELD_OUT}


@dataclass(kw_only=True)
class Countdown(GeneratedTask):
    """Write an expression over exactly the given digits that comes to the target.

    The prompt `34=07:` means: make 7 from 3 and 4; `3+4` and `4+3` are correct. Answers use
    `+`, `-` and `*` with the usual precedence, each given digit once, no parentheses and no
    numbers of several digits. Levels 0 to 6 have 2, 3, 3, 4, 4, 5, 5 digits; their targets
    come from random expressions, without `*` at levels 1, 3 and 5.
    """

    name: ClassVar[str] = "countdown"
    alphabet: ClassVar[str] = ALPHABET
    corpus_shares: ClassVar[CorpusShares] = CorpusShares(random=0.1, mistaken=0.6)

    train_levels: tuple[int, ...] | None = option(
        None,
        ge=0,
        le=LEVELS - 1,
        absent=None,
        help="those of them that are trained; null: all. Held out are all of them",
    )
    held_out_per_level: int = option(20, ge=1, le=25, help="held-out problems of each level")
    train_per_level: int = option(
        2000, ge=1, help="training problems of each level, fewer where there are fewer"
    )

    @property
    def max_prompt_length(self) -> int:
        return max(DIFFICULTIES[level].numbers for level in self.levels) + len("=00:")

    @property
    def max_completion_length(self) -> int:
        return 2 * max(DIFFICULTIES[level].numbers for level in self.levels)

    def by_level(self, split: Split) -> list[list[Problem]]:
        return self._problems[split]

    def score(self, problems: Sequence[Problem], completions: Sequence[str]) -> PerCompletion:
        answers = zip(problems, self.answers(problems, completions), strict=True)
        right = [a is not None and value(a) == p.reference["target"] for p, a in answers]
        return np.array(right, dtype=np.float64)

    def answers(self, problems: Sequence[Problem], completions: Sequence[str]) -> list[str | None]:
        """Return the completions that are expressions over exactly the given digits."""
        return [
            text
            if _EXPRESSION.fullmatch(text) and sorted(text[::2]) == sorted(_digits(problem))
            else None
            for problem, text in zip(problems, completions, strict=True)
        ]

    def pretraining_pairs(
        self, count: int, rng: np.random.Generator, *, shares: CorpusShares | None = None
    ) -> tuple[list[str], list[str]]:
        """Return prompts and answers; targets are random, computed left to right, or correct."""
        levels = rng.choice(self.levels, size=count)
        random, mistaken = shares or self.corpus_shares
        kinds = rng.choice(3, size=count, p=[random, mistaken, 1 - random - mistaken])
        prompts = np.empty(count, dtype=object)
        answers = np.empty(count, dtype=object)
        for level in self.levels:
            for kind in range(3):
                rows = np.flatnonzero((levels == level) & (kinds == kind))
                prompts[rows], answers[rows] = _corpus(DIFFICULTIES[level], kind, len(rows), rng)
        return prompts.tolist(), answers.tolist()

    def corpus_identity(self) -> Plain:
        identity = self.identity()
        return {key: identity[key] for key in ("name", "revision", "levels")}

    def floors(self, split: Split = Split.HELD_OUT) -> Mapping[str, Floor]:
        """Return the exact floor `guess`: uniform expressions over the given digits.

        The order of the digits and the operators are uniform, which makes all different
        expressions equally likely, also with repeated digits.
        """
        rates = {}
        for problem in self.problems(split):
            digits = tuple(sorted(map(int, _digits(problem))))
            rows, table = _shares(len(digits))
            rates[problem.id] = float(table[rows[digits], problem.reference["target"]])
        return {"guess": Floor("guess", "uniform expressions over the given digits", rates)}

    @functools.cached_property
    def _problems(self) -> dict[Split, list[list[Problem]]]:
        """The problems of each split, by level."""
        found: dict[Split, list[list[Problem]]] = {split: [] for split in Split}
        held_out = np.empty(0, dtype=np.int64)
        for level in self.levels:
            rng = np.random.default_rng([self.own_seed, level])
            numbers, operators = DIFFICULTIES[level].draw(_CANDIDATES, rng)
            targets = evaluate(numbers, operators)
            key = keys(numbers, targets)
            # The distinct problems, in order of appearance.
            rows = np.flatnonzero((targets >= 0) & (targets < TARGETS))
            rows = rows[np.sort(np.unique(key[rows], return_index=True)[1])]
            for split, part in _PARTS.items():
                chosen = rows[belongs(key[rows], part)]
                if split is Split.HELD_OUT:
                    # Levels with the same number of digits can share a problem; evaluate it once.
                    chosen = chosen[~np.isin(key[chosen], held_out)][: self.held_out_per_level]
                    assert len(chosen) == self.held_out_per_level
                    held_out = np.concatenate([held_out, key[chosen]])
                else:
                    chosen = chosen[: self.train_per_level]
                # Also where the level is not trained: held-out prompts depend on these draws.
                expressions = numbers[chosen], operators[chosen], targets[chosen]
                problems = _make_problems(level, *expressions, rng)
                if split is Split.HELD_OUT or level in (self.train_levels or self.levels):
                    found[split].append(problems)
        return found


def _digits(problem: Problem) -> str:
    return problem.prompt.partition("=")[0]


def _make_problems(
    level: int, numbers: Numbers, operators: Operators, targets: Ints, rng: np.random.Generator
) -> list[Problem]:
    prompts = write_prompts(rng.permuted(numbers, axis=1), targets)
    names = write_prompts(np.sort(numbers, axis=1), targets)
    fields = {
        "signature": signatures(numbers).tolist(),
        "target": targets.tolist(),
        "solution": write(numbers, operators),
    }
    references = (dict(zip(fields, row, strict=True)) for row in zip(*fields.values(), strict=True))
    return [
        Problem(id=f"{level}/{name[:-1]}", prompt=prompt, level=level, reference=reference)
        for name, prompt, reference in zip(names, prompts, references, strict=True)
    ]


def _corpus(
    level: Level, kind: int, count: int, rng: np.random.Generator
) -> tuple[list[str], list[str]]:
    """Return pretraining prompts of one level and their answers.

    Args:
        kind: whether targets are random (0), computed from left to right (1) or right (2).
    """
    prompts: list[str] = []
    answers: list[str] = []
    while len(prompts) < count:
        numbers, operators = level.draw(5 * (count - len(prompts)) + 64, rng)
        if kind == 0:
            targets: Ints = rng.integers(0, TARGETS, len(numbers))
        else:
            targets = (evaluate if kind == 2 else evaluate_left_to_right)(numbers, operators)
        inside = (targets >= 0) & (targets < TARGETS)
        inside &= belongs(keys(numbers, targets), Part.PRETRAINING)
        rows = np.flatnonzero(inside)[: count - len(prompts)]
        prompts += write_prompts(rng.permuted(numbers[rows], axis=1), targets[rows])
        answers += write(numbers[rows], operators[rows])
    return prompts, answers
