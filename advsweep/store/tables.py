"""Tables: their columns, and how times, arrays and JSON documents are stored.

Tables of SQLAlchemy's Core. `info["about"]` of a table says what a row is.
"""

from __future__ import annotations

import functools
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any

from sqlalchemy import (
    JSON,
    BigInteger,
    Boolean,
    Column,
    DateTime,
    Double,
    Enum,
    ForeignKey,
    Integer,
    LargeBinary,
    MetaData,
    String,
    Table,
    UniqueConstraint,
)
from sqlalchemy.engine import Dialect
from sqlalchemy.schema import SchemaItem
from sqlalchemy.types import TypeDecorator

from advsweep.store.records import Failure, Status

if TYPE_CHECKING:
    import numpy as np


class UtcDateTime(TypeDecorator[datetime]):
    """A timezone-aware time in UTC, also in databases without time zones."""

    impl = DateTime(timezone=True)
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

    impl = LargeBinary
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


def _by_value(members: type[Status] | type[Failure]) -> Enum:
    return Enum(
        members,
        native_enum=False,
        length=16,
        values_callable=lambda listed: [member.value for member in listed],
    )


METADATA = MetaData(
    # Named constraints let migrations change them.
    naming_convention={
        "ix": "ix_%(table_name)s_%(column_0_N_name)s",
        "uq": "uq_%(table_name)s_%(column_0_N_name)s",
        "fk": "fk_%(table_name)s_%(column_0_N_name)s",
        "pk": "pk_%(table_name)s",
    }
)

_Required = functools.partial(Column, nullable=False)
_HASH = String(64)


def _table(name: str, about: str, *columns: SchemaItem, **options: Any) -> Table:
    return Table(name, METADATA, *columns, info={"about": about}, **options)


SWEEPS = _table(
    "sweeps",
    "A named set of runs.",
    Column("id", Integer, primary_key=True),
    _Required("name", String, unique=True),
    _Required("spec", JSON),
    _Required("created", UtcDateTime),
)

RUNS = _table(
    "runs",
    "One training with one seed, in one attempt: its config, lease, progress and end.",
    Column("id", Integer, primary_key=True),
    _Required("identity", _HASH),
    _Required("attempt", Integer),
    _Required("config_hash", _HASH, index=True),
    _Required("seed", BigInteger),
    _Required("estimator", String),
    _Required("backend", String),
    _Required("steps", Integer),
    _Required("config", JSON),
    Column("environment", JSON),
    _Required("status", _by_value(Status), index=True),
    _Required("step", Integer),
    Column("stage", String),
    _Required("created", UtcDateTime),
    Column("started", UtcDateTime),
    Column("finished", UtcDateTime),
    Column("heartbeat", UtcDateTime),
    Column("host", String),
    Column("pid", Integer),
    Column("process_started", Double),
    _Required("stop_requested", Boolean),
    Column("failure", _by_value(Failure)),
    Column("stopping", JSON),
    Column("error", String),
    Column("traceback", String),
    UniqueConstraint("identity", "attempt"),
)

SWEEP_RUNS = _table(
    "sweep_runs",
    "A run's place in the plan of a sweep.",
    Column("sweep_id", ForeignKey("sweeps.id"), primary_key=True),
    Column("run_id", ForeignKey("runs.id"), primary_key=True, index=True),
    _Required("position", Integer),
)

TRIALS = _table(
    "trials",
    "A point that a search proposed; its runs share a configuration.",
    Column("sweep_id", ForeignKey("sweeps.id"), primary_key=True),
    Column("number", Integer, primary_key=True),
    _Required("params", JSON),
    _Required("config_hash", _HASH),
)

METRICS = _table(
    "metrics",
    "The name of a metric, once.",
    Column("id", Integer, primary_key=True),
    _Required("name", String, unique=True),
)

POINTS = _table(
    "points",
    "The value of a metric at a step; NULL stands for NaN.\n\n"
    "The rows are stored in the order of the key, so that a curve is one stretch of the table.",
    Column("run_id", ForeignKey("runs.id"), primary_key=True),
    Column("metric_id", ForeignKey("metrics.id"), primary_key=True),
    Column("step", Integer, primary_key=True),
    Column("value", Double),
    sqlite_with_rowid=False,
)

SUMMARIES = _table(
    "summaries",
    "A number about a whole run.",
    Column("run_id", ForeignKey("runs.id"), primary_key=True),
    Column("metric_id", ForeignKey("metrics.id"), primary_key=True),
    Column("value", Double),
    sqlite_with_rowid=False,
)

CHECKPOINTS = _table(
    "checkpoints",
    "A checkpoint; `path` is relative to the parent of all run folders if it lies below it.",
    Column("run_id", ForeignKey("runs.id"), primary_key=True),
    Column("path", String, primary_key=True),
    _Required("step", Integer),
    _Required("created", UtcDateTime),
)

PROBLEM_SETS = _table(
    "problem_sets",
    "Problems in a fixed order; `problems` is a list of [id, prompt, level].",
    Column("id", Integer, primary_key=True),
    _Required("digest", _HASH, unique=True),
    _Required("problems", JSON),
)

EVALUATIONS = _table(
    "evaluations",
    "Counts per problem, each an array in the order of the problem set.",
    Column("id", Integer, primary_key=True),
    _Required("identity", _HASH, unique=True),
    _Required("subject", String),
    _Required("task", String),
    _Required("settings", JSON),
    _Required("created", UtcDateTime),
    _Required("problem_set_id", ForeignKey("problem_sets.id")),
    _Required("n", Packed("<u4")),
    _Required("c", Packed("<u4")),
    _Required("distinct", Packed("<u4")),
    _Required("unscorable", Packed("<u4")),
    _Required("answer_entropy", Packed("<f8")),
    _Required("token_entropy", Packed("<f8")),
    Column("right_entropy", Packed("<f8")),
    Column("kl_base", Packed("<f8")),
    # Problem after problem, so that its length differs: how often each right answer came.
    Column("right_counts", Packed("<u4")),
)

RUN_EVALUATIONS = _table(
    "run_evaluations",
    "A link of an evaluation to a run's weights after `step` steps; runs may share one.",
    Column("run_id", ForeignKey("runs.id"), primary_key=True),
    Column("evaluation_id", ForeignKey("evaluations.id"), primary_key=True),
    _Required("step", Integer),
)

EVALUATION_SAMPLES = _table(
    "evaluation_samples",
    "Some answers of an evaluation; reports, which read evaluations, do not read them.",
    Column("evaluation_id", ForeignKey("evaluations.id", ondelete="CASCADE"), primary_key=True),
    _Required("answers", JSON),
)

ANALYSES = _table(
    "analyses",
    "An analysis of a run's weights after `step` steps; `directions` are unit vectors.",
    Column("run_id", ForeignKey("runs.id"), primary_key=True),
    Column("identity", _HASH, primary_key=True),
    _Required("kind", String(16)),
    _Required("step", Integer),
    _Required("settings", JSON),
    _Required("created", UtcDateTime),
    _Required("result", JSON),
    Column("directions", Packed("<f4")),
)
