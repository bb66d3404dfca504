"""Exit codes of a worker; all others mean that it ended without a word to the store."""

from __future__ import annotations

DONE = 0
"""Everything that was asked for is made."""
FAILED = 10
"""The run failed, and why is recorded."""
STOPPED = 11
"""It was asked to stop and did, with a checkpoint where there was something to save."""
ELSEWHERE = 12
"""Another process has the run."""
UNRECORDED = 13
"""The store took nothing any more."""
ORPHANED = 14
"""The process that started it was gone, and it did not stop in time."""
OUT_OF_MEMORY = 15
"""The run failed for want of memory, and that is recorded."""
PRUNED = 16
"""A rule for early stopping ended the run, with a checkpoint."""
STACKED = 17
"""What came of each of the runs that were trained together is in its record."""
DISK_FULL = 18
"""The store took nothing any more: its disk is full, or its file may not grow."""
