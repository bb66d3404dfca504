"""Tables: their columns, and how times, arrays and JSON documents are stored.

Tables of SQLAlchemy's Core. `info["about"]` of a table says what a row is.
"""

from __future__ import annotations

import functools
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any

import sqlalchemy as sa
from sqlalchemy.engine import Dialect
from sqlalchemy.schema import SchemaItem
from sqlalchemy.types import TypeDecorator

from advsweep.failures import Failure
from advsweep.store.records import Status

if TYPE_CHECKING:
    import numpy as np


class UtcDateTime(TypeDecorator[datetime]):
    """A timezone-aware time in UTC, also in databases without time zones."""

    impl = sa.DateTime(timezone=True)
    cache_ok = True

    def process_bind_param(self, value: datetime | None, dialect: Dialect) -> datetime | None:
        return None if value is None else value.astimezone(UTC)

    def process_result_value(self, value: datetime | None, dialect: Dialect) -> datetime | None:
        if value is None:
            return None
        return value.replace(tzinfo=UTC) if value.tzinfo is None else value.astimezone(UTC)


class Packed(TypeDecorator["np.ndarray[Any, Any]"]):
    """A one-dimensional array, stored as its little-endian bytes.

    For arrays that are always read as a whole. The counts of an evaluation are one row instead
    of hundreds, which keeps reports over thousands of runs fast.
    """

    impl = sa.LargeBinary
    cache_ok = True

    def __init__(self, dtype: str) -> None:
        super().__init__()
        self.dtype = dtype

    def process_bind_param(
        self, value: np.ndarray[Any, Any] | None, dialect: Dialect
    ) -> bytes | None:
        if value is None:
            return None
        import numpy as np  # takes as long to import as all else that `ls` needs

        return np.asarray(value, dtype=self.dtype).tobytes()

    def process_result_value(
        self, value: bytes | None, dialect: Dialect
    ) -> np.ndarray[Any, Any] | None:
        if value is None:
            return None
        import numpy as np

        return np.frombuffer(value, dtype=self.dtype)


def _by_value(members: type[Status] | type[Failure]) -> sa.Enum:
    return sa.Enum(
        members,
        native_enum=False,
        length=16,
        values_callable=lambda listed: [member.value for member in listed],
    )


METADATA = sa.MetaData(
    # Named constraints let migrations change them.
    naming_convention={
        "ix": "ix_%(table_name)s_%(column_0_N_name)s",
        "uq": "uq_%(table_name)s_%(column_0_N_name)s",
        "fk": "fk_%(table_name)s_%(column_0_N_name)s",
        "pk": "pk_%(table_name)s",
    }
)

_Required = functools.partial(sa.Column, nullable=False)
_HASH = sa.String(64)


def _table(name: str, about: str, *columns: SchemaItem, **options: Any) -> sa.Table:
    return sa.Table(name, METADATA, *columns, info={"about": about}, **options)


SWEEPS = _table(
    "sweeps",
    "A named set of runs, with what its user notes of it.",
    sa.Column("id", sa.Integer, primary_key=True),
    _Required("name", sa.String, unique=True),
    _Required("spec", sa.JSON),
    _Required("created", UtcDateTime),
    sa.Column("note", sa.String),
    sa.Column("tags", sa.JSON),
)

RUNS = _table(
    "runs",
    "One training with one seed, in one attempt: its config, lease, progress and end.\n\n"
    "`seed` is NULL where nobody knows it, as of imported logs that do not say.",
    sa.Column("id", sa.Integer, primary_key=True),
    _Required("identity", _HASH),
    _Required("attempt", sa.Integer),
    _Required("config_hash", _HASH, index=True),
    sa.Column("seed", sa.BigInteger),
    _Required("estimator", sa.String),
    _Required("backend", sa.String),
    _Required("steps", sa.Integer),
    _Required("config", sa.JSON),
    sa.Column("environment", sa.JSON),
    _Required("status", _by_value(Status), index=True),
    _Required("step", sa.Integer),
    sa.Column("stage", sa.String),
    _Required("created", UtcDateTime),
    sa.Column("started", UtcDateTime),
    sa.Column("finished", UtcDateTime),
    sa.Column("heartbeat", UtcDateTime),
    sa.Column("host", sa.String),
    sa.Column("pid", sa.Integer),
    sa.Column("process_started", sa.Double),
    _Required("stop_requested", sa.Boolean),
    sa.Column("failure", _by_value(Failure)),
    sa.Column("stopping", sa.JSON),
    sa.Column("error", sa.String),
    sa.Column("traceback", sa.String),
    sa.UniqueConstraint("identity", "attempt"),
)

SWEEP_RUNS = _table(
    "sweep_runs",
    "A run's place in the plan of a sweep.",
    sa.Column("sweep_id", sa.ForeignKey("sweeps.id"), primary_key=True),
    sa.Column("run_id", sa.ForeignKey("runs.id"), primary_key=True, index=True),
    _Required("position", sa.Integer),
)

TRIALS = _table(
    "trials",
    "A point that a search of an earlier version proposed; nothing reads it now.",
    sa.Column("sweep_id", sa.ForeignKey("sweeps.id"), primary_key=True),
    sa.Column("number", sa.Integer, primary_key=True),
    _Required("params", sa.JSON),
    _Required("config_hash", _HASH),
)

METRICS = _table(
    "metrics",
    "The name of a metric, once.",
    sa.Column("id", sa.Integer, primary_key=True),
    _Required("name", sa.String, unique=True),
)

POINTS = _table(
    "points",
    "The value of a metric at a step; NULL stands for NaN.\n\n"
    "The rows are stored in the order of the key, so that a curve is one stretch of the table.",
    sa.Column("run_id", sa.ForeignKey("runs.id"), primary_key=True),
    sa.Column("metric_id", sa.ForeignKey("metrics.id"), primary_key=True),
    sa.Column("step", sa.Integer, primary_key=True),
    sa.Column("value", sa.Double),
    sqlite_with_rowid=False,
)

SUMMARIES = _table(
    "summaries",
    "A number about a whole run.",
    sa.Column("run_id", sa.ForeignKey("runs.id"), primary_key=True),
    sa.Column("metric_id", sa.ForeignKey("metrics.id"), primary_key=True),
    sa.Column("value", sa.Double),
    sqlite_with_rowid=False,
)

CHECKPOINTS = _table(
    "checkpoints",
    "A checkpoint; `path` is relative to the parent of all run folders if it lies below it.",
    sa.Column("run_id", sa.ForeignKey("runs.id"), primary_key=True),
    sa.Column("path", sa.String, primary_key=True),
    _Required("step", sa.Integer),
    _Required("created", UtcDateTime),
)

PROBLEM_SETS = _table(
    "problem_sets",
    "Problems in a fixed order; `problems` is a list of [id, prompt, level].",
    sa.Column("id", sa.Integer, primary_key=True),
    _Required("digest", _HASH, unique=True),
    _Required("problems", sa.JSON),
)

EVALUATIONS = _table(
    "evaluations",
    "Counts per problem, each an array in the order of the problem set.",
    sa.Column("id", sa.Integer, primary_key=True),
    _Required("identity", _HASH, unique=True),
    _Required("subject", sa.String),
    _Required("task", sa.String),
    _Required("settings", sa.JSON),
    _Required("created", UtcDateTime),
    _Required("problem_set_id", sa.ForeignKey("problem_sets.id")),
    _Required("n", Packed("<u4")),
    _Required("c", Packed("<u4")),
    _Required("distinct", Packed("<u4")),
    _Required("unscorable", Packed("<u4")),
    _Required("answer_entropy", Packed("<f8")),
    _Required("token_entropy", Packed("<f8")),
    sa.Column("right_entropy", Packed("<f8")),
    sa.Column("kl_base", Packed("<f8")),
    # Problem after problem, so that its length differs: how often each right answer came.
    sa.Column("right_counts", Packed("<u4")),
)

RUN_EVALUATIONS = _table(
    "run_evaluations",
    "A link of an evaluation to a run's weights after `step` steps; runs may share one.",
    sa.Column("run_id", sa.ForeignKey("runs.id"), primary_key=True),
    sa.Column("evaluation_id", sa.ForeignKey("evaluations.id"), primary_key=True),
    _Required("step", sa.Integer),
)

EVALUATION_SAMPLES = _table(
    "evaluation_samples",
    "Some answers of an evaluation; reports, which read evaluations, do not read them.",
    sa.Column(
        "evaluation_id", sa.ForeignKey("evaluations.id", ondelete="CASCADE"), primary_key=True
    ),
    _Required("answers", sa.JSON),
)

ANALYSES = _table(
    "analyses",
    "An analysis of a run's weights after `step` steps; `directions` are unit vectors.",
    sa.Column("run_id", sa.ForeignKey("runs.id"), primary_key=True),
    sa.Column("identity", _HASH, primary_key=True),
    _Required("kind", sa.String(16)),
    _Required("step", sa.Integer),
    _Required("settings", sa.JSON),
    _Required("created", UtcDateTime),
    _Required("result", sa.JSON),
    sa.Column("directions", Packed("<f4")),
)
