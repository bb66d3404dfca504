"""Tables: their columns, and how times, arrays and JSON documents are stored."""

from __future__ import annotations

import functools
import json
import re
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

_SEED = re.compile(r', "seed": ([0-9]+)\}\Z')
_CONFIGS = 1024  # parsed configs that are cached


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


def parse_document(text: str) -> Any:
    """Returns the value of a JSON document.

    The configs of replicates differ only by their seed, which comes last. They are parsed once:
    each gets a mapping of its own, and they share the nodes in it. No code changes a node in
    place.
    """
    seed = _SEED.search(text, max(0, len(text) - 40))
    if seed is None:
        return json.loads(text)
    return _parse_without_seed(text[: seed.start()]) | {"seed": int(seed.group(1))}


@functools.lru_cache(maxsize=_CONFIGS)
def _parse_without_seed(text: str) -> dict[str, Any]:
    parsed: dict[str, Any] = json.loads(text + "}")
    return parsed


class Base(DeclarativeBase):
    """Base class of the models; named constraints let migrations change them."""

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
    """One training with one seed, in one attempt: its config, lease, progress and end."""

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
    """A run's place in the plan of a sweep."""

    __tablename__ = "sweep_runs"

    sweep_id: Mapped[int] = mapped_column(ForeignKey("sweeps.id"), primary_key=True)
    run_id: Mapped[int] = mapped_column(ForeignKey("runs.id"), primary_key=True, index=True)
    position: Mapped[int]


class Trial(Base):
    """A point that a search proposed; its runs share a configuration."""

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
    """The value of a metric at a step; NULL stands for NaN.

    The rows are stored in the order of the key, so that a curve is one stretch of the table.
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
    """A checkpoint; `path` is relative to the parent of all run folders if it lies below it."""

    __tablename__ = "checkpoints"

    run_id: Mapped[int] = mapped_column(ForeignKey("runs.id"), primary_key=True)
    path: Mapped[str] = mapped_column(primary_key=True)
    step: Mapped[int]
    created: Mapped[datetime]


class ProblemSet(Base):
    """Problems in a fixed order; `problems` is a list of [id, prompt, level]."""

    __tablename__ = "problem_sets"

    id: Mapped[int] = mapped_column(primary_key=True)
    digest: Mapped[str] = mapped_column(String(64), unique=True)
    problems: Mapped[list[Any]]


class Evaluation(Base):
    """Counts per problem, each an array in the order of the problem set."""

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
    right_entropy: Mapped[Floats | None] = mapped_column(Packed("<f8"))


class RunEvaluation(Base):
    """A link of an evaluation to a run's weights after `step` steps; runs may share one."""

    __tablename__ = "run_evaluations"

    run_id: Mapped[int] = mapped_column(ForeignKey("runs.id"), primary_key=True)
    evaluation_id: Mapped[int] = mapped_column(ForeignKey("evaluations.id"), primary_key=True)
    step: Mapped[int]


class EvaluationSamples(Base):
    """Some answers of an evaluation; reports, which read evaluations, do not read them."""

    __tablename__ = "evaluation_samples"

    evaluation_id: Mapped[int] = mapped_column(
        ForeignKey("evaluations.id", ondelete="CASCADE"), primary_key=True
    )
    answers: Mapped[list[Any]]


class Analysis(Base):
    """An analysis of a run's weights after `step` steps; `directions` are unit vectors."""

    __tablename__ = "analyses"

    run_id: Mapped[int] = mapped_column(ForeignKey("runs.id"), primary_key=True)
    identity: Mapped[str] = mapped_column(String(64), primary_key=True)
    kind: Mapped[str] = mapped_column(String(16))
    step: Mapped[int]
    settings: Mapped[dict[str, Any]]
    created: Mapped[datetime]
    result: Mapped[dict[str, Any]]
    directions: Mapped[Directions | None] = mapped_column(Packed("<f4"))
