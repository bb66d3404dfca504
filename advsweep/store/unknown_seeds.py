"""Forgets the seeds that imports of earlier versions made up.

Until schema 0008 an imported run always had a seed: one whose log did not say was given the least
number that no run of equal settings had. Runs of two settings then seemed to share seeds. What
told the two kinds apart is the digest that an import stores of all that it wrote: the seed is
part of its config only where the log or the user gave it.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING, Any

from sqlalchemy import Connection, select, text, update

from advsweep.errors import counted, first_of
from advsweep.store.imported import IMPORTED
from advsweep.store.tables import (
    EVALUATIONS,
    METRICS,
    POINTS,
    PROBLEM_SETS,
    RUN_EVALUATIONS,
    RUNS,
)

if TYPE_CHECKING:
    from advsweep.store.lease_guard import AnyRow

_DIGEST = "digest"

# SQLite cannot drop NOT NULL, so that another column takes the place of the old one.
_NULLABLE_SEED = {
    "sqlite": (
        "ALTER TABLE runs ADD COLUMN seed_or_null BIGINT",
        "UPDATE runs SET seed_or_null = seed",
        "ALTER TABLE runs DROP COLUMN seed",
        "ALTER TABLE runs RENAME COLUMN seed_or_null TO seed",
    ),
    "postgresql": ("ALTER TABLE runs ALTER COLUMN seed DROP NOT NULL",),
}


def forget_made_up_seeds(connection: Connection) -> str:
    """Let seeds be unknown, and make those unknown that an import numbered.

    A run whose digest cannot tell (its log was rotated, or an early version imported it) counts
    as one of unknown seed, unless no import could have given it the number.

    Returns:
        What was done, in words.
    """
    for statement in _NULLABLE_SEED[connection.dialect.name]:
        connection.execute(text(statement))
    query = select(RUNS.c.id, RUNS.c.seed, RUNS.c.step, RUNS.c.config, RUNS.c.environment)
    imported = connection.execute(query.where(RUNS.c.backend == IMPORTED)).all()
    forgotten: list[int] = []
    undecided: list[str] = []
    for row in imported:
        is_known = _is_known(connection, row)
        # A numbered run had at most as many before it as its id says.
        if is_known is None and row.seed >= row.id:
            continue
        if is_known is None:
            undecided.append(str(row.id))
        if not is_known:
            forgotten.append(row.id)
            _forget(connection, row)
    done = f"runs.seed may be unknown, as it is of {counted(len(forgotten), 'imported run')}"
    if undecided:
        done += (
            f"; nothing tells whether the logs of runs {first_of(undecided, 8)} had theirs: "
            "import them again"
        )
    return done


def _forget(connection: Connection, row: AnyRow) -> None:
    config = {key: value for key, value in row.config.items() if key != "seed"}
    change = update(RUNS).where(RUNS.c.id == row.id)
    connection.execute(change.values(seed=None, config=config))


def _is_known(connection: Connection, row: AnyRow) -> bool | None:
    """Return whether the log or the user gave a run's seed; None where nothing tells."""
    digest = (row.environment or {}).get(_DIGEST)
    with_seed = dict(row.config)
    without_seed = {key: value for key, value in with_seed.items() if key != "seed"}
    curves = list(_curves(connection, row.id))
    for evaluations in _evaluations(connection, row):
        for config, is_known in ((with_seed, True), (without_seed, False)):
            content = hashlib.sha256(json.dumps([config, row.seed, row.step]).encode())
            for part in (*curves, *evaluations):
                content.update(part)
            if content.hexdigest() == digest:
                return is_known
    return None


def _curves(connection: Connection, run_id: int) -> Iterator[bytes]:
    """Yield the bytes that stand for a run's curves in its digest, by name and step."""
    import numpy as np  # takes as long to import as all else that opening a store needs

    query = (
        select(METRICS.c.name, POINTS.c.step, POINTS.c.value)
        .where(METRICS.c.id == POINTS.c.metric_id, POINTS.c.run_id == run_id)
        .order_by(METRICS.c.id, POINTS.c.step)
    )
    curves: dict[str, tuple[list[int], list[float]]] = {}
    for name, step, value in connection.execute(query):
        steps, values = curves.setdefault(name, ([], []))
        steps.append(step)
        values.append(np.nan if value is None else value)
    for name, (steps, values) in sorted(curves.items()):
        yield json.dumps([name, len(steps)]).encode()
        yield np.array(steps, "<i8").tobytes() + np.array(values, "<f8").tobytes()


def _evaluations(connection: Connection, row: AnyRow) -> Iterator[list[bytes]]:
    """Yield what may stand for a run's evaluations in its digest.

    The digest has an empty task where the log named none; the store has the run's task there.
    """
    query = (
        select(
            RUN_EVALUATIONS.c.step,
            EVALUATIONS.c.task,
            EVALUATIONS.c.n,
            EVALUATIONS.c.c,
            PROBLEM_SETS.c.problems,
        )
        .join(EVALUATIONS, EVALUATIONS.c.id == RUN_EVALUATIONS.c.evaluation_id)
        .join(PROBLEM_SETS, PROBLEM_SETS.c.id == EVALUATIONS.c.problem_set_id)
        .where(
            RUN_EVALUATIONS.c.run_id == row.id,
            EVALUATIONS.c.settings["sampler"].as_string() == IMPORTED,
        )
    )
    listed = [
        [step, problem[0], n, c, task]
        for step, task, ns, cs, problems in connection.execute(query)
        for problem, n, c in zip(problems, ns.tolist(), cs.tolist(), strict=True)
    ]
    yield [json.dumps(each).encode() for each in sorted(listed)]
    task_of_run = _task_name(row.config)
    unnamed = [[*each[:4], "" if each[4] == task_of_run else each[4]] for each in listed]
    if unnamed != listed:
        yield [json.dumps(each).encode() for each in sorted(unnamed)]


def _task_name(config: Mapping[str, Any]) -> str:
    task = config.get("task")
    name = task.get("name") if isinstance(task, Mapping) else None
    return str(name or IMPORTED)
