"""Plain rollouts draw once and keep every group."""

from __future__ import annotations

from typing import Any

from advsweep.rollouts import ROLLOUTS


def test_plain_draws_once_and_keeps_all_in_order(script: Any) -> None:
    source = script([[0.0, 0.0], [0.0, 1.0]])
    assert ROLLOUTS.build("plain").collect(source, 5).groups.tolist() == [0, 1, 2, 3, 4]
    assert source.asked == [5]
