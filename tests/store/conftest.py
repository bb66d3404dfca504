"""A store in SQLite and in PostgreSQL, a clock that tests turn, and runs to put in."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest

from advsweep.store import NewRun, Store, open_store


@dataclass
class Clock:
    """A time of day that stands still until it is told to move."""

    now: datetime = datetime(2026, 3, 1, 12, 0, tzinfo=UTC)

    def __call__(self) -> datetime:
        return self.now

    def forward(self, seconds: float) -> None:
        self.now += timedelta(seconds=seconds)


@pytest.fixture
def clock() -> Clock:
    return Clock()


# Tests of what one of the two alone has parametrise it with the one, indirectly.
@pytest.fixture(params=["sqlite", "postgresql"])
def store_url(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    """Where a store is to be: in a file, and in a server's database."""
    if request.param == "sqlite":
        return str(tmp_path / "advsweep.db")
    url: str = request.getfixturevalue("postgres_url")
    return url


@pytest.fixture
def store(store_url: str, clock: Clock) -> Iterator[Store]:
    with open_store(store_url, clock=clock) as opened:
        yield opened


def _new_run(seed: int = 0, estimator: str = "grpo", steps: int = 100, **config: Any) -> NewRun:
    material = json.dumps([estimator, steps, config], sort_keys=True).encode()
    config_hash = hashlib.sha256(material).hexdigest()
    return NewRun(
        identity=hashlib.sha256(f"{config_hash} {seed}".encode()).hexdigest(),
        config_hash=config_hash,
        seed=seed,
        config={"estimator": {"name": estimator}, "seed": seed, **config},
        steps=steps,
        estimator=estimator,
        backend="fake",
    )


@pytest.fixture(scope="session")
def new_run() -> Callable[..., NewRun]:
    """Plans a run; the same arguments give the same identity."""
    return _new_run
