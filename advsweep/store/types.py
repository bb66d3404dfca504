"""Column types: times that keep their zone, and arrays packed into one value."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Any

import numpy as np
from sqlalchemy import DateTime, LargeBinary
from sqlalchemy.engine import Dialect
from sqlalchemy.types import TypeDecorator


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
