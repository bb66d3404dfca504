"""A task: greatest common divisors, harder with every digit."""

import functools
import math
import re
from dataclasses import dataclass
from typing import ClassVar

import numpy as np

from advsweep.components import option
from advsweep.tasks.base import Problem, Split, Task


@dataclass(kw_only=True)
class Gcd(Task):
    """The greatest common divisor of two numbers, of which the smaller is below 10^(level + 2).

    The last number of a completion is its answer.
    """

    name: ClassVar[str] = "gcd"

    levels: tuple[int, ...] = option((0, 1, 2), ge=0, le=6, help="difficulty levels in use")
    held_out: int = option(20, ge=1, le=80, help="held-out problems of each level")

    @functools.cached_property
    def _problems(self):
        splits = {Split.TRAIN: [], Split.HELD_OUT: []}
        for level in self.levels:
            # A generator of its own: the problems of a level do not depend on the other levels.
            rng = np.random.default_rng([20, level])
            pairs = np.unique(rng.integers(2, 10 ** (level + 2), (200, 2)).cumsum(axis=1), axis=0)
            problems = [_problem(a, b, level) for a, b in rng.permutation(pairs).tolist()]
            splits[Split.HELD_OUT] += problems[: self.held_out]
            splits[Split.TRAIN] += problems[self.held_out :]
        return splits

    def problems(self, split):
        return self._problems[split]

    def draw(self, count, rng):
        problems = self._problems[Split.TRAIN]
        return [problems[row] for row in rng.integers(len(problems), size=count)]

    def score(self, problems, completions):
        pairs = zip(problems, self.answers(problems, completions), strict=True)
        return np.array([float(answer == p.reference["answer"]) for p, answer in pairs])

    def answers(self, problems, completions):
        numbers = (re.findall(r"[0-9]{1,12}", text) for text in completions)
        return [str(int(found[-1])) if found else None for found in numbers]


def _problem(a, b, level):
    answer = str(math.gcd(a, b))
    prompt = f"What is the greatest common divisor of {a} and {b}? Answer with the number."
    # Tests and the fake backend write the known solution of a problem.
    reference = {"answer": answer, "solution": answer}
    return Problem(id=f"{a},{b}", prompt=prompt, level=level, reference=reference)
