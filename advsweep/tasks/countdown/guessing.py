"""How often a uniform guess solves a countdown problem, by enumeration of all expressions."""

from __future__ import annotations

import functools
import itertools
from collections.abc import Sequence
from typing import TYPE_CHECKING

import numpy as np

from advsweep.tasks.countdown.expressions import OPERATORS, evaluate, signatures
from advsweep.tasks.floors import Floor

if TYPE_CHECKING:
    from jaxtyping import Float

    from advsweep.tasks.base import Problem

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
