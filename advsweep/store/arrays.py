"""The arrays of the store: curves of metrics and the counts of evaluations.

The only module of the store that needs numpy, apart from merging; imported when one is read.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import chain
from typing import TYPE_CHECKING, Any

import numpy as np

from advsweep.store.evaluation_records import COUNTS, IN_NATS

if TYPE_CHECKING:
    from jaxtyping import Float, Int

    from advsweep.store.evaluation_records import ProblemCounts
    from advsweep.store.owners import AnyRow

    Series = tuple[Int[np.ndarray, " steps"], Float[np.ndarray, " steps"]]
    """The steps and the values of a metric of one run."""


def pack(values: np.ndarray[Any, Any], dtype: str) -> bytes:
    """Returns the bytes of an array."""
    return np.asarray(values, dtype=dtype).tobytes()


def unpack(data: bytes, dtype: str) -> np.ndarray[Any, Any]:
    """Returns the array that has these bytes."""
    return np.frombuffer(data, dtype=dtype)


def parse_series(steps: str, values: str) -> Series:
    """Returns a curve from its steps and values as texts with commas."""
    return np.array(steps.split(","), np.int64), np.array(values.split(","), np.float64)


def split_series(rows: Sequence[tuple[int, int, float | None]]) -> dict[int, Series]:
    """Splits rows of (run, step, value), sorted by run, into one curve per run."""
    if not rows:
        return {}
    # Floats hold ids and steps exactly, as they are far below 2**53. NULL becomes NaN.
    runs, steps, values = np.array(rows, dtype=np.float64).T
    starts = np.flatnonzero(np.diff(runs, prepend=-1.0))
    bounds = zip(starts, [*starts[1:], len(runs)], strict=True)
    steps = steps.astype(np.int64)
    return {int(runs[a]): (steps[a:b], values[a:b].copy()) for a, b in bounds}


def evaluation_columns(
    problems: Sequence[ProblemCounts],
) -> dict[str, np.ndarray[Any, Any] | None]:
    """Return the counts of problems as the columns of the table `evaluations`."""
    counts = {name: np.array([getattr(p, name) for p in problems]) for name in COUNTS}
    # The dtype makes NaN of None.
    in_nats = {
        name: np.array([getattr(p, name) for p in problems], dtype=np.float64) for name in IN_NATS
    }
    of_right = [p.right_counts for p in problems if p.right_counts is not None]
    known = len(of_right) == len(problems)
    return {
        **counts,
        **in_nats,
        "right_counts": np.array(list(chain.from_iterable(of_right)), int) if known else None,
    }


def evaluation_arrays(row: AnyRow, levels: Sequence[int]) -> dict[str, np.ndarray[Any, Any] | None]:
    """Return the arrays of an `EvaluationRecord` from a row of the table `evaluations`."""
    scored, unscorable = row.n.astype(np.int64), row.unscorable.astype(np.int64)
    # Evaluations by older versions lack some.
    in_nats = {name: getattr(row, name) for name in IN_NATS}
    unknown = np.full(len(levels), np.nan)
    of_right = row.right_counts
    return {
        "levels": np.array(levels, dtype=np.int64),
        # Samples that the verifier failed on count as not correct, unless no sample was scored.
        "n": np.where(scored > 0, scored + unscorable, 0),
        "c": row.c.astype(np.int64),
        "distinct": row.distinct.astype(np.int64),
        "unscorable": unscorable,
        **{name: unknown if found is None else found for name, found in in_nats.items()},
        "right_counts": None if of_right is None else of_right.astype(np.int64),
    }
