"""Numbers about a whole run that no metric point holds."""

from __future__ import annotations

import resource
import sys
import time
from collections.abc import Iterable
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from advsweep.store import Store

RUN_SECONDS = "time/run"
"""Seconds that a run's processes took, all of them together, evaluations included; its part of
them where they had other runs, too."""

PEAK_MEMORY = "memory/peak"
"""Bytes of memory that the largest of its processes held at once."""


class Costs:
    """Measures what this process costs, and adds it to what earlier ones of a run did."""

    def __init__(self) -> None:
        self._started = time.monotonic()

    def record(self, store: Store, run_id: int) -> None:
        """Adds this process's costs to the run's summaries; to be called once."""
        _add(store, run_id, time.monotonic() - self._started)


class SharedCosts:
    """Measures what each of several runs costs that are trained together in this process.

    The time of the process is theirs in equal parts as long as they are in it, so that the times
    of all of them add up to its own. The memory of each is the process's.
    """

    def __init__(self, run_ids: Iterable[int]) -> None:
        self._seconds = dict.fromkeys(run_ids, 0.0)
        self._divided = time.monotonic()

    def leave(self, run_id: int) -> float:
        """Takes a run out; the seconds that it took, 0 where it was out before."""
        now = time.monotonic()
        for other in self._seconds:
            self._seconds[other] += (now - self._divided) / len(self._seconds)
        self._divided = now
        return self._seconds.pop(run_id, 0.0)

    def record(self, store: Store, run_id: int) -> None:
        """Takes a run out, and adds its costs to its summaries."""
        _add(store, run_id, self.leave(run_id))


def _add(store: Store, run_id: int, seconds: float) -> None:
    earlier = store.metrics.summaries([run_id]).get(run_id, {})
    store.metrics.set_summaries(
        run_id,
        {
            RUN_SECONDS: earlier.get(RUN_SECONDS, 0.0) + seconds,
            PEAK_MEMORY: max(earlier.get(PEAK_MEMORY, 0.0), _peak_memory()),
        },
    )


def _peak_memory() -> float:
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    # macOS counts bytes, everyone else kilobytes.
    return float(peak if sys.platform == "darwin" else peak * 1024)
