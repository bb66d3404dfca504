"""Parts of problems and fixed random numbers: known values, shares."""

from __future__ import annotations

import numpy as np
import pytest

from advsweep.tasks.generated import Part, belongs, fixed_uniform, mix

GOLDEN = 0x9E3779B97F4A7C15
FIRST, SECOND = 0xE220A8397B1DCDAF, 0x6E789E6AA1B965F4
"""What SplitMix64 gives first when it starts from 0, as its authors' code does."""


def test_mix_is_that_of_splitmix64() -> None:
    states = np.array([GOLDEN, 2 * GOLDEN % 2**64], dtype=np.uint64)
    assert mix(states).tolist() == [FIRST, SECOND]
    assert int(mix(0)) == 0


def test_fixed_uniform_is_splitmix64_from_a_mixed_start() -> None:
    # Stream 0 starts at mix(GOLDEN), and each place adds GOLDEN.
    expected = [int(mix(np.uint64((FIRST + i * GOLDEN) % 2**64))) for i in (1, 2)]
    found = fixed_uniform(0, np.arange(2))
    assert found.tolist() == [(x >> 11) / 2**53 for x in expected]


def test_fixed_uniform_is_uniform() -> None:
    drawn = fixed_uniform(np.arange(100)[:, None], np.arange(1000))
    assert drawn.shape == (100, 1000)
    assert 0 <= drawn.min() < drawn.max() < 1
    # The standard deviation of a mean is 1/sqrt(12 n).
    assert drawn.mean() == pytest.approx(0.5, abs=4 / (12 * 1e5) ** 0.5)
    assert np.abs(drawn.mean(axis=1) - 0.5).max() < 4.5 / (12 * 1e3) ** 0.5
    assert np.abs(np.corrcoef(drawn[:8]) - np.eye(8)).max() < 4.5 / 1000**0.5


def test_parts_cover_all_keys_once() -> None:
    keys = np.arange(100_000)
    flags = np.array([belongs(keys, part) for part in Part])
    assert (flags.sum(axis=0) == 1).all()
    # Binomial: standard deviation at most .0016.
    assert flags.mean(axis=1) == pytest.approx([0.40, 0.35, 0.25], abs=0.0065)
