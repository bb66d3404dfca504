"""Rollouts that lag behind the training, as those of asynchronous samplers do."""

from __future__ import annotations

from collections import deque
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from advsweep.backends.tiny.weights import Weights


class WeightHistory:
    """The weights before the last steps.

    Args:
        lag: how many steps older than the current weights those are that sample.
    """

    def __init__(self, lag: int) -> None:
        self._lag = lag
        self._kept: deque[Weights] = deque(maxlen=lag + 1)

    def sampling(self, current: Weights) -> Weights:
        """Return the weights of `lag` steps ago, or the first ones; call this once per step.

        Args:
            current: the weights before the step, which it will change in place.
        """
        if self._lag == 0:
            return current
        self._kept.append({name: weight.detach().clone() for name, weight in current.items()})
        return self._kept[0]

    def state(self) -> Weights:
        """Return what the next steps need, by `PLACE/WEIGHT`; empty without a lag."""
        return {
            f"{place}/{name}": weight
            for place, weights in enumerate(self._kept)
            for name, weight in weights.items()
        }

    def restore(self, state: Weights) -> None:
        """Load what `state` returned."""
        self._kept.clear()
        by_place: dict[int, Weights] = {}
        for key, weight in state.items():
            place, name = key.split("/", 1)
            by_place.setdefault(int(place), {})[name] = weight
        self._kept.extend(weights for _, weights in sorted(by_place.items()))
