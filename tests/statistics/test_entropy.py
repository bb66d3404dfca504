"""Answer entropy."""

from __future__ import annotations

import math

import pytest

from advsweep.errors import AdvsweepError
from advsweep.statistics import answer_entropy


def test_worked_values() -> None:
    # 1/2, 1/4, 1/4: (ln 2)/2 + 2 (ln 4)/4 = 1.5 ln 2.
    assert answer_entropy([4, 2, 2]) == pytest.approx(1.5 * math.log(2))


@pytest.mark.parametrize("counts", [[], [0, 0], [3, -1]])
def test_no_answers_and_negative_counts_are_refused(counts: list[int]) -> None:
    with pytest.raises(AdvsweepError, match="expected counts of answers"):
        answer_entropy(counts)
