"""Floors: how often an answerer without skill is right, problem by problem."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

if TYPE_CHECKING:
    from jaxtyping import Float


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
