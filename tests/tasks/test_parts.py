"""Parts of problems and fixed random numbers: known values, shares."""

from __future__ import annotations

import numpy as np

from advsweep.tasks.generated import fixed_uniform, mix

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
