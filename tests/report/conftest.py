"""A small store, filled by hand, in which every number can be checked on paper."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest

from advsweep.store import NewEvaluation, NewRun, Owner, ProblemCounts, Status, Store, open_store

ENVIRONMENT = {
    "advsweep": "0.1.0",
    "git": {"commit": "0123456789abcdef", "dirty": False},
    "python": "3.11.7",
    "packages": {"torch": "2.13.0", "numpy": "2.4.6"},
    "cpu": "A CPU",
    "cores": 2,
    "memory_bytes": 8 * 2**30,
}
STEPS = 20


@dataclass
class Lab:
    """Fills a store with finished runs.

    Two problems are evaluated, `samples` times each, of which `unscorable` could not be scored;
    `solved` are the correct samples of each. `problems` are their ids and prompts, by default
    of no task's. `levels` are theirs, by default 0 and 1. `right_entropy` is that of each
    correct sample.
    """

    store: Store
    samples: int = 4
    unscorable: tuple[int, int] = (0, 0)
    problems: Sequence[tuple[str, str]] | None = None
    levels: Sequence[int] | None = None
    right_entropy: float = 0.125

    def run(
        self,
        estimator: str = "grpo",
        seed: int = 0,
        *,
        solved: Sequence[int] | None = (2, 0),
        points: Sequence[tuple[str, int, float]] = (),
        sweep: str | None = "demo",
        status: Status = Status.DONE,
        base: str = "base:aaaabbbbcccc",
        base_solved: Sequence[int] = (1, 0),
        identity_free: dict[str, Any] | None = None,
        **config: Any,
    ) -> int:
        """Adds a run; keyword arguments with two underscores for a dot become its config."""
        plain: dict[str, Any] = {"estimator": {"name": estimator}, "group_size": 8}
        plain |= {"prompts_per_step": 4, "steps": STEPS}
        for key, value in config.items():
            _set(plain, key.split("__"), value)
        material = json.dumps([plain, estimator], sort_keys=True).encode()
        config_hash = hashlib.sha256(material).hexdigest()
        identity = hashlib.sha256(f"{config_hash} {seed}".encode()).hexdigest()
        for key, value in (identity_free or {}).items():
            _set(plain, key.split("__"), value)
        new = NewRun(
            identity=identity,
            config_hash=config_hash,
            seed=seed,
            config={**plain, "seed": seed, "evaluation": {"n": self.samples}},
            steps=STEPS,
            estimator=estimator,
            backend="fake",
        )
        if sweep is not None:
            self.store.sweeps.add(sweep, {})
        [run_id] = self.store.runs.add([new], sweep)
        self.store.runs.set_environment(run_id, ENVIRONMENT)
        if status is Status.PENDING:
            return run_id
        self.store.leases.claim(run_id, Owner.current())
        self.store.metrics.record(run_id, points)
        if solved is not None:
            self.evaluate(run_id, f"{identity}@{STEPS}", STEPS, solved)
            self.evaluate(run_id, base, 0, base_solved)
        if status is not Status.RUNNING:
            self.store.leases.finish(run_id, status)
        return run_id

    def evaluate(
        self,
        run_id: int | None,
        subject: str,
        step: int,
        solved: Sequence[int],
        *,
        task: str = "countdown",
        prompt: str = "",
        right: Sequence[Sequence[int]] | None = None,
        kl: Sequence[float] | None = None,
        **settings: Any,
    ) -> None:
        """Adds an evaluation.

        Args:
            right: how often each right answer to each problem came; they add up to `solved`.
            kl: KL from the base model of each problem.
        """
        settings = {"n": self.samples, "k": [1, 2], "temperature": 1.0, "seed": 0, **settings}
        material = json.dumps([subject, task, settings])
        identity = hashlib.sha256(material.encode()).hexdigest()
        self.store.evaluations.add(
            NewEvaluation(
                identity=identity,
                subject=subject,
                run_id=run_id,
                step=step,
                task=task,
                settings=settings,
                problems=[
                    ProblemCounts(
                        problem_id=f"{i}" if self.problems is None else self.problems[i][0],
                        prompt=f"{prompt}{i}=" if self.problems is None else self.problems[i][1],
                        level=i if self.levels is None else self.levels[i],
                        n=settings["n"] - self.unscorable[i],
                        c=c,
                        distinct=1,
                        unscorable=self.unscorable[i],
                        answer_entropy=0.25 * c,
                        right_entropy=self.right_entropy * c if c else None,
                        right_counts=None if right is None else right[i],
                        kl_base=None if kl is None else kl[i],
                    )
                    for i, c in enumerate(solved)
                ],
            )
        )


def _set(node: dict[str, Any], path: Sequence[str], value: Any) -> None:
    for part in path[:-1]:
        node = node.setdefault(part, {})
    node[path[-1]] = value


@pytest.fixture
def lab(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Lab]:
    """An empty store `advsweep.db` in the working folder, on the first of March."""
    monkeypatch.chdir(tmp_path)
    noon = datetime(2026, 3, 1, 12, 0, tzinfo=UTC)
    with open_store("advsweep.db", clock=lambda: noon) as store:
        yield Lab(store)


@pytest.fixture
def constant() -> Callable[..., list[tuple[str, int, float]]]:
    """Metric points that are the same at every step, so that they are their own means."""
    return lambda **values: [
        (name.replace("__", "/"), step, value)
        for name, value in values.items()
        for step in range(1, STEPS + 1)
    ]


@pytest.fixture
def demo(lab: Lab, constant: Callable[..., list[tuple[str, int, float]]]) -> Lab:
    """The sweep `demo`: three seeds each of grpo and fade, and one of rloo.

    ACR falls by 0.1 from the first half of the training to the second.
    """

    def points(acr: float, entropy: float) -> list[tuple[str, int, float]]:
        falling = [("collapse/acr", s, acr - (s > STEPS // 2) * 0.1) for s in range(1, STEPS + 1)]
        return falling + constant(entropy__token=entropy, cost__rollouts=1.0)

    for seed, solved in enumerate([(2, 0), (2, 2), (4, 2)]):
        lab.run("grpo", seed, solved=solved, points=points(0.4 + seed / 10, 1.0))
    for seed in range(3):
        lab.run("fade", seed, solved=(4, 2), points=points(0.2, 1.5))
    lab.run("rloo", 0, solved=(4, 4), points=points(0.2, 2.0))
    return lab
