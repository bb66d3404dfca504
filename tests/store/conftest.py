"""Fixtures: a store in SQLite and in PostgreSQL, a clock and planned runs."""

from __future__ import annotations

import hashlib
import json
import multiprocessing
import shutil
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest

from advsweep.store import NewEvaluation, NewRun, ProblemCounts, Store, open_store


@dataclass
class Clock:
    """A clock that a test moves forward."""

    now: datetime = datetime(2026, 3, 1, 12, 0, tzinfo=UTC)

    def __call__(self) -> datetime:
        return self.now

    def forward(self, seconds: float) -> None:
        self.now += timedelta(seconds=seconds)


@pytest.fixture
def clock() -> Clock:
    return Clock()


# Tests of one database parametrise it indirectly.
@pytest.fixture(params=["sqlite", "postgresql"])
def store_url(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    """The place of a new store: a file, then a database of a server."""
    if request.param == "sqlite":
        return str(tmp_path / "advsweep.db")
    url: str = request.getfixturevalue("postgres_url")
    return url


@pytest.fixture
def store(store_url: str, clock: Clock, empty_file: Path) -> Iterator[Store]:
    if "://" not in store_url:
        shutil.copyfile(empty_file, store_url)
    with open_store(store_url, clock=clock) as opened:
        yield opened


def _side_by_side(works: Sequence[Callable[[], Any]]) -> list[Any]:
    # Forked: a fresh interpreter would spend a second on imports.
    context = multiprocessing.get_context("fork")
    start = context.Barrier(len(works))

    def run(work: Callable[[], Any], sender: Any) -> None:
        start.wait()
        sender.send(work())

    pipes = [context.Pipe(duplex=False) for _ in works]
    processes = [
        context.Process(target=run, args=(work, sender))
        for work, (_, sender) in zip(works, pipes, strict=True)
    ]
    for process in processes:
        process.start()
    for _, sender in pipes:
        sender.close()
    results = [receiver.recv() for receiver, _ in pipes]
    for process in processes:
        process.join()
    return results


@pytest.fixture(scope="session")
def side_by_side() -> Callable[[Sequence[Callable[[], Any]]], list[Any]]:
    """Runs functions in processes that start together; returns their results."""
    return _side_by_side


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
    """Returns a planned run; the same arguments give the same identity."""
    return _new_run


def evaluation_of(
    identity: str,
    run_id: int | None,
    step: int,
    *,
    subject: str = "weights",
    problems: Sequence[str] = ("a",),
) -> NewEvaluation:
    """An evaluation in which 2 of 4 samples of each problem are correct."""
    return NewEvaluation(
        identity=identity,
        subject=subject,
        run_id=run_id,
        step=step,
        task="countdown",
        settings={"n": 4, "k": [1, 4]},
        problems=[
            ProblemCounts(
                problem_id=name,
                prompt=f"prompt of {name}",
                level=level,
                n=4,
                c=2,
                distinct=3,
                unscorable=0,
                answer_entropy=1.0,
            )
            for level, name in enumerate(problems)
        ],
    )
