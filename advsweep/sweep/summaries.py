"""Numbers about a whole run that no metric point holds."""

from __future__ import annotations

import resource
import sys
import time
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from advsweep.store import Store

RUN_SECONDS = "time/run"
"""Seconds that a run's processes took, all of them together, evaluations included."""

PEAK_MEMORY = "memory/peak"
"""Bytes of memory that the largest of its processes held at once."""


class Costs:
    """Measures what this process costs, and adds it to what earlier ones of a run did."""

    def __init__(self) -> None:
        self._started = time.monotonic()

    def record(self, store: Store, run_id: int) -> None:
        """Adds this process's costs to the run's summaries; to be called once."""
        earlier = store.summaries([run_id]).get(run_id, {})
        took = time.monotonic() - self._started
        store.set_summaries(
            run_id,
            {
                RUN_SECONDS: earlier.get(RUN_SECONDS, 0.0) + took,
                PEAK_MEMORY: max(earlier.get(PEAK_MEMORY, 0.0), _peak_memory()),
            },
        )


def _peak_memory() -> float:
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    # macOS counts bytes, everyone else kilobytes.
    return float(peak if sys.platform == "darwin" else peak * 1024)
