"""Column types: times that keep their zone, and arrays packed into one value."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Any

import numpy as np
from sqlalchemy import (
    JSON,
    BigInteger,
    DateTime,
    Double,
    Enum,
    ForeignKey,
    LargeBinary,
    MetaData,
    String,
    UniqueConstraint,
)
from sqlalchemy.engine import Dialect
from sqlalchemy.orm import DeclarativeBase, Mapped, mapped_column
from sqlalchemy.types import TypeDecorator

from advsweep.store.records import Failure, Status


class UtcDateTime(TypeDecorator[datetime]):
    """A time in UTC, aware on both sides, whether the database knows time zones or not."""

    impl = DateTime(timezone=True)
    cache_ok = True

    def process_bind_param(self, value: datetime | None, dialect: Dialect) -> datetime | None:
        return None if value is None else value.astimezone(UTC)

    def process_result_value(self, value: datetime | None, dialect: Dialect) -> datetime | None:
        if value is None:
            return None
        return value.replace(tzinfo=UTC) if value.tzinfo is None else value.astimezone(UTC)


class Packed(TypeDecorator["np.ndarray[Any, Any]"]):
    """A one-dimensional array as its little-endian bytes.

    For what is always written and read as a whole: the counts of an evaluation's problems
    are one row, not hundreds, which keeps reports over thousands of runs quick.
    """

    impl = LargeBinary
    cache_ok = True

    def __init__(self, dtype: str) -> None:
        super().__init__()
        self.dtype = dtype

    def process_bind_param(
        self, value: np.ndarray[Any, Any] | None, dialect: Dialect
    ) -> bytes | None:
        return None if value is None else np.asarray(value, dtype=self.dtype).tobytes()

    def process_result_value(
        self, value: bytes | None, dialect: Dialect
    ) -> np.ndarray[Any, Any] | None:
        return None if value is None else np.frombuffer(value, dtype=self.dtype)


Counts = np.ndarray[Any, np.dtype[np.uint32]]
Floats = np.ndarray[Any, np.dtype[np.float64]]
Directions = np.ndarray[Any, np.dtype[np.float32]]


def _by_value(members: type[Status] | type[Failure]) -> Enum:
    return Enum(
        members,
        native_enum=False,
        length=16,
        values_callable=lambda listed: [member.value for member in listed],
    )


class Base(DeclarativeBase):
    """Root of the models; constraints have names, so that migrations can change them."""

    metadata = MetaData(
        naming_convention={
            "ix": "ix_%(table_name)s_%(column_0_N_name)s",
            "uq": "uq_%(table_name)s_%(column_0_N_name)s",
            "fk": "fk_%(table_name)s_%(column_0_N_name)s",
            "pk": "pk_%(table_name)s",
        }
    )
    type_annotation_map = {  # noqa: RUF012 (SQLAlchemy's own declaration)
        datetime: UtcDateTime(),
        dict[str, Any]: JSON(),
        list[Any]: JSON(),
        float: Double(),
    }


class Sweep(Base):
    """A named set of runs."""

    __tablename__ = "sweeps"

    id: Mapped[int] = mapped_column(primary_key=True)
    name: Mapped[str] = mapped_column(unique=True)
    spec: Mapped[dict[str, Any]]
    created: Mapped[datetime]


class Run(Base):
    """One training with one seed, in one attempt; who has it, and how far it is."""

    __tablename__ = "runs"
    __table_args__ = (UniqueConstraint("identity", "attempt"),)

    id: Mapped[int] = mapped_column(primary_key=True)
    identity: Mapped[str] = mapped_column(String(64))
    attempt: Mapped[int]
    config_hash: Mapped[str] = mapped_column(String(64), index=True)
    seed: Mapped[int] = mapped_column(BigInteger)
    estimator: Mapped[str]
    backend: Mapped[str]
    steps: Mapped[int]
    config: Mapped[dict[str, Any]]
    environment: Mapped[dict[str, Any] | None]
    status: Mapped[Status] = mapped_column(_by_value(Status), index=True)
    step: Mapped[int]
    stage: Mapped[str | None]
    created: Mapped[datetime]
    started: Mapped[datetime | None]
    finished: Mapped[datetime | None]
    heartbeat: Mapped[datetime | None]
    host: Mapped[str | None]
    pid: Mapped[int | None]
    process_started: Mapped[float | None]
    stop_requested: Mapped[bool]
    failure: Mapped[Failure | None] = mapped_column(_by_value(Failure))
    stopping: Mapped[dict[str, Any] | None]
    error: Mapped[str | None]
    traceback: Mapped[str | None]


class SweepRun(Base):
    """That a run is part of a sweep, and where in its plan."""

    __tablename__ = "sweep_runs"

    sweep_id: Mapped[int] = mapped_column(ForeignKey("sweeps.id"), primary_key=True)
    run_id: Mapped[int] = mapped_column(ForeignKey("runs.id"), primary_key=True, index=True)
    position: Mapped[int]


class Trial(Base):
    """What a search asked for: a point of its space, whose runs share a configuration."""

    __tablename__ = "trials"

    sweep_id: Mapped[int] = mapped_column(ForeignKey("sweeps.id"), primary_key=True)
    number: Mapped[int] = mapped_column(primary_key=True)
    params: Mapped[dict[str, Any]]
    config_hash: Mapped[str] = mapped_column(String(64))


class Metric(Base):
    """The name of a metric, once."""

    __tablename__ = "metrics"

    id: Mapped[int] = mapped_column(primary_key=True)
    name: Mapped[str] = mapped_column(unique=True)


class Point(Base):
    """A metric's value at a step; NULL is not a number.

    The rows lie in the order of the key, so that a curve is one stretch of the table.
    """

    __tablename__ = "points"
    __table_args__ = {"sqlite_with_rowid": False}  # noqa: RUF012

    run_id: Mapped[int] = mapped_column(ForeignKey("runs.id"), primary_key=True)
    metric_id: Mapped[int] = mapped_column(ForeignKey("metrics.id"), primary_key=True)
    step: Mapped[int] = mapped_column(primary_key=True)
    value: Mapped[float | None]


class Summary(Base):
    """A number about a whole run."""

    __tablename__ = "summaries"
    __table_args__ = {"sqlite_with_rowid": False}  # noqa: RUF012

    run_id: Mapped[int] = mapped_column(ForeignKey("runs.id"), primary_key=True)
    metric_id: Mapped[int] = mapped_column(ForeignKey("metrics.id"), primary_key=True)
    value: Mapped[float | None]


class Checkpoint(Base):
    """A checkpoint; `path` is relative to the folder of all runs where it lies below it."""

    __tablename__ = "checkpoints"

    run_id: Mapped[int] = mapped_column(ForeignKey("runs.id"), primary_key=True)
    path: Mapped[str] = mapped_column(primary_key=True)
    step: Mapped[int]
    created: Mapped[datetime]


class ProblemSet(Base):
    """Some problems in a fixed order; `problems` is a list of [id, prompt, level]."""

    __tablename__ = "problem_sets"

    id: Mapped[int] = mapped_column(primary_key=True)
    digest: Mapped[str] = mapped_column(String(64), unique=True)
    problems: Mapped[list[Any]]


class Evaluation(Base):
    """Counts per problem of a problem set, each an array in the order of its problems."""

    __tablename__ = "evaluations"

    id: Mapped[int] = mapped_column(primary_key=True)
    identity: Mapped[str] = mapped_column(String(64), unique=True)
    subject: Mapped[str]
    task: Mapped[str]
    settings: Mapped[dict[str, Any]]
    created: Mapped[datetime]
    problem_set_id: Mapped[int] = mapped_column(ForeignKey("problem_sets.id"))
    n: Mapped[Counts] = mapped_column(Packed("<u4"))
    c: Mapped[Counts] = mapped_column(Packed("<u4"))
    distinct: Mapped[Counts] = mapped_column(Packed("<u4"))
    unscorable: Mapped[Counts] = mapped_column(Packed("<u4"))
    answer_entropy: Mapped[Floats] = mapped_column(Packed("<f8"))
    token_entropy: Mapped[Floats] = mapped_column(Packed("<f8"))


class RunEvaluation(Base):
    """That an evaluation is of a run's weights after `step` steps; runs may share one."""

    __tablename__ = "run_evaluations"

    run_id: Mapped[int] = mapped_column(ForeignKey("runs.id"), primary_key=True)
    evaluation_id: Mapped[int] = mapped_column(ForeignKey("evaluations.id"), primary_key=True)
    step: Mapped[int]


class Analysis(Base):
    """What was found in a run's weights after `step` steps; `directions` are unit vectors."""

    __tablename__ = "analyses"

    run_id: Mapped[int] = mapped_column(ForeignKey("runs.id"), primary_key=True)
    identity: Mapped[str] = mapped_column(String(64), primary_key=True)
    kind: Mapped[str] = mapped_column(String(16))
    step: Mapped[int]
    settings: Mapped[dict[str, Any]]
    created: Mapped[datetime]
    result: Mapped[dict[str, Any]]
    directions: Mapped[Directions | None] = mapped_column(Packed("<f4"))
