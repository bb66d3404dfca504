"""Writes imported runs into a store: each as a whole, in one transaction, and only once.

A run is identified by its format and its source. Importing it again changes what its files have
changed: an unchanged run stays as it is, and a longer log adds its new steps.
"""

from __future__ import annotations

import hashlib
import json
import math
import re
from array import array
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from enum import Enum
from itertools import islice
from typing import TYPE_CHECKING, Any

import numpy as np
from sqlalchemy import Connection, delete, insert, or_, select, update

from advsweep.logs.base import LAST_STEP, ProblemCount
from advsweep.logs.names import LoggedStep, estimator_node
from advsweep.printable import MASK, printable_line, redacted
from advsweep.store import NewEvaluation, ProblemCounts, Store
from advsweep.store.base import put
from advsweep.store.evaluations import add_evaluation, problems_digest, remove_unused_problems
from advsweep.store.imported import IMPORTED, ROWS, setting_leaves
from advsweep.store.lease_guard import AnyRow
from advsweep.store.metrics import metric_ids, write_points
from advsweep.store.records import Status
from advsweep.store.run_folders import is_whole
from advsweep.store.store import utc_now
from advsweep.store.sweeps import append_runs
from advsweep.store.tables import EVALUATIONS, POINTS, RUN_EVALUATIONS, RUNS, SWEEPS

if TYPE_CHECKING:
    from jaxtyping import Float, Int

    LoggedCurve = tuple[Int[np.ndarray, " steps"], Float[np.ndarray, " steps"]]

_CHUNK = 50_000  # points written at once
_MAX_TEXT = 200

MAX_DEPTH = 32
MAX_KEYS = 5_000
MAX_TEXT = 10_000

# Names of secrets, but not prompt_key, pad_token and the like, which settings are full of.
_SECRET = re.compile(
    r"(?:.*[_.-])?(?:(?:api|access|secret|private|auth|hub|hf|wandb)[_-]?(?:key|token)s?"
    r"|passw(?:or)?d|passphrase|secret|credentials?)|token",
    re.IGNORECASE,
)

# A seed as a text: 3, seed3, seed_3, s3.
_SEED = re.compile(r"(?:(?:seed|s)[ _=-]?)?(\d{1,18})", re.IGNORECASE | re.ASCII)

_COMPONENTS = ("task", "model", "objective", "rollout", "optimizer", "generation", "evaluation")
_COUNTS = ("group_size", "prompts_per_step", "steps")


class ImportAction(Enum):
    """What an import did with a run."""

    ADDED = "new"
    UPDATED = "updated"
    UNCHANGED = "unchanged"
    SHORTER = "left as it is"


@dataclass
class Written:
    """What an import did with one run.

    Attributes:
        run_id: None if nothing was written, as in a dry run.
        seed: the seed that it has in the store; None if nobody knows it.
        steps: logged steps; `new_steps` of them were not in the store.
    """

    action: ImportAction
    run_id: int | None
    seed: int | None
    steps: int
    new_steps: int
    points: int
    evaluations: int


@dataclass(frozen=True, kw_only=True)
class RunContent:
    """All that an import knows about a run.

    Attributes:
        source: names the run among all of its format; a path or an id.
        config: as `stored_config` returns it, with the seed if it is known.
    """

    form: str
    source: str
    config: Mapping[str, Any]
    curves: Mapping[str, LoggedCurve]
    evaluations: Sequence[ProblemCount]
    repeated: int = 0

    @property
    def identity(self) -> str:
        """sha256, in hex, of the format and the source."""
        content = json.dumps([IMPORTED, self.form, self.source])
        return hashlib.sha256(content.encode()).hexdigest()

    @property
    def last_step(self) -> int:
        """The last step of the log and of the evaluations; 0 without any."""
        ends = [int(steps[-1]) for steps, _ in self.curves.values()]
        return max([*ends, *(result.step for result in self.evaluations)], default=0)

    def steps(self) -> Int[np.ndarray, " steps"]:
        """Return all logged steps, sorted."""
        parts = [steps for steps, _ in self.curves.values()]
        return np.unique(np.concatenate(parts)) if parts else np.array([], np.int64)

    @property
    def seed(self) -> int | None:
        """The seed; None if nobody knows it."""
        seed: int | None = self.config.get("seed")
        return seed

    def digest(self) -> str:
        """Return a sha256, in hex, of everything that a store would hold of the run."""
        found = hashlib.sha256(json.dumps([self.config, self.seed, self.last_step]).encode())
        for name, (steps, values) in self.curves.items():
            found.update(json.dumps([name, len(steps)]).encode())
            found.update(steps.astype("<i8").tobytes() + values.astype("<f8").tobytes())
        for result in self.evaluations:
            found.update(json.dumps(result).encode())
        return found.hexdigest()


def gather(
    form: str,
    source: str,
    config: Mapping[str, Any],
    steps: Iterable[LoggedStep],
    evaluations: Sequence[ProblemCount] = (),
) -> RunContent:
    """Read the steps of a run and return its content: for each metric and step the last value."""
    curves: dict[str, LoggedCurve] = {}
    repeated = 0
    for name, (numbers, floats) in sorted(_points_by_name(steps).items()):
        at = np.frombuffer(numbers, np.int32).astype(np.int64)
        values = np.frombuffer(floats, np.float64)
        # Of equal steps the last one in the log stays last.
        order = np.argsort(at, kind="stable")
        at = at[order]
        is_last = np.append(at[1:] != at[:-1], True)
        repeated += int((~is_last).sum())
        curves[name] = (at[is_last], values[order][is_last])
    return RunContent(
        form=form,
        source=source,
        config=config,
        curves=curves,
        evaluations=_accepted(evaluations),
        repeated=repeated,
    )


def _points_by_name(steps: Iterable[LoggedStep]) -> dict[str, tuple[array[int], array[float]]]:
    """Return the steps and values of each metric, in the order of the log."""
    points: dict[str, tuple[array[int], array[float]]] = {}
    for step, values in steps:
        if not 0 <= step <= LAST_STEP:
            continue
        for name, value in values.items():
            if name not in points:
                points[name] = (array("i"), array("d"))
            numbers, floats = points[name]
            numbers.append(step)
            floats.append(value)
    return points


def _accepted(evaluations: Iterable[ProblemCount]) -> list[ProblemCount]:
    """Return the results that a store accepts, sorted; of equal problems the last."""
    accepted: dict[tuple[int, str, str], ProblemCount] = {}
    for each in evaluations:
        result = ProblemCount(*each)
        if not 0 <= result.correct <= result.n < 2**32 or not 0 <= result.step <= LAST_STEP:
            continue
        problem = printable_line(str(result.problem))[:_MAX_TEXT]
        task = printable_line(str(result.task))[:_MAX_TEXT]
        key = (result.step, task, problem)
        accepted[key] = result._replace(problem=problem, task=task)
    return sorted(accepted.values())


def stored_config(
    theirs: Mapping[str, Any], *, form: str, rows: Sequence[str] | None, seed: int | None = None
) -> dict[str, Any]:
    """Return the config of an imported run, as `advsweep.store.imported` describes it.

    Args:
        theirs: what the files and the command say.
        form: the name of the format.
        rows: the keys that alone tell settings apart; None for those of the config, or for all.
        seed: the seed, if it is known already.
    """
    config = plain(theirs)
    chosen = list(rows) if rows is not None else config.get(ROWS)
    estimator = config.pop("estimator", None)
    backend = config.pop("backend", None)
    for key in (ROWS, "seed"):
        config.pop(key, None)
    for key in _COMPONENTS:
        # Reports read the names of these nodes.
        if key in config and not isinstance(config[key], dict):
            config[key] = {"name": config[key]}
    for key in _COUNTS:
        value = config.get(key)
        if key in config and not is_whole(value, 1):
            config[f"their_{key}"] = config.pop(key)
    result: dict[str, Any] = {"backend": {"name": IMPORTED, "format": form}}
    if backend is not None:
        result["their_backend"] = backend
    result |= {"estimator": estimator_node(estimator), **config}
    if isinstance(chosen, list) and chosen:
        result[ROWS] = [str(key) for key in chosen]
    # The seed comes last: configs that are equal up to there are parsed once.
    return result if seed is None else {**result, "seed": seed}


def plain(value: Any, depth: int = 0) -> Any:
    """Return a value of a foreign file as every store accepts it: bounded plain JSON.

    Control characters of texts are escaped, since keys and values are shown. Texts whose key
    names a secret, and passwords in URLs, are masked.
    """
    if depth < MAX_DEPTH:
        if isinstance(value, Mapping):
            return _plain_mapping(value, depth)
        if isinstance(value, (list, tuple)):
            return [plain(item, depth + 1) for item in value[:MAX_KEYS]]
    if value is None or isinstance(value, bool):
        return value
    if isinstance(value, (int, float)):
        return _plain_number(value)
    text = str(value)[:MAX_TEXT]
    return printable_line(redacted(text) if "://" in text else text)


def _plain_mapping(value: Mapping[Any, Any], depth: int) -> dict[str, Any]:
    result = {}
    for key, item in islice(value.items(), MAX_KEYS):
        name = str(key)[:MAX_TEXT]
        is_secret = isinstance(item, str) and item and _SECRET.fullmatch(name)
        result[printable_line(name)] = MASK if is_secret else plain(item, depth + 1)
    return result


def _plain_number(number: float) -> float | str | None:
    """Return a number that JSON and every database has; a text for infinity, None for others."""
    if isinstance(number, int):
        if abs(number) < 2**63:
            return number
        return float(number) if abs(number) < 10**300 else None
    if math.isnan(number):
        return None
    if math.isinf(number):
        return "inf" if number > 0 else "-inf"
    return number


def seed_of(config: Mapping[str, Any]) -> int | None:
    """Return the seed of a config; None if it has none that is a whole number from 0."""
    value = config.get("seed")
    match = _SEED.fullmatch(value) if isinstance(value, str) else None
    if match:
        value = int(match[1])
    if isinstance(value, float) and value.is_integer():
        value = int(value)
    return value if is_whole(value) else None


def config_hash(config: Mapping[str, Any]) -> str:
    """Return the hash of what tells settings apart; runs that share it are replicates."""
    form = config["backend"].get("format")
    content = json.dumps([form, *sorted(setting_leaves(config))], sort_keys=True, default=str)
    return hashlib.sha256(content.encode()).hexdigest()


@dataclass(frozen=True, kw_only=True)
class ImportContext:
    """What an import says of all its runs.

    Attributes:
        environment: how the runs were imported; stored with each.
        sweep: a sweep that they become part of; made if it does not exist.
        dry_run: whether nothing is written.
    """

    environment: Mapping[str, Any]
    sweep: str | None = None
    dry_run: bool = False


def write_run(
    store: Store,
    content: RunContent,
    context: ImportContext,
    *,
    created: datetime | None = None,
) -> Written:
    """Add a run, or bring that of the same identity up to date, in one transaction.

    The run becomes what its files say, except that steps before the first of the log stay, as
    trainers may rotate their logs. A log that ends before the stored run changes nothing.

    Args:
        created: when the run counts as added, which decides its place in tables; by default now.

    Raises:
        StoreError: the database could not do it; nothing of the run is stored.
    """
    digest = content.digest()
    steps = content.steps()
    database = store.database
    # Alone: what is written follows from what exists.
    with database.read() if context.dry_run else database.write_alone() as connection:
        query = select(RUNS.c.id, RUNS.c.step, RUNS.c.environment)
        query = query.where(RUNS.c.identity == content.identity, RUNS.c.attempt == 1)
        old = connection.execute(query).first()
        written = Written(
            action=_action(content, digest, old),
            run_id=None if old is None else old.id,
            seed=content.seed,
            steps=len(steps),
            new_steps=len(steps) if old is None else int((steps > old.step).sum()),
            points=sum(len(curve) for curve, _ in content.curves.values()),
            evaluations=len({(result.step, result.task) for result in content.evaluations}),
        )
        if context.dry_run:
            return written
        if written.action in (ImportAction.ADDED, ImportAction.UPDATED):
            values = _values(content, {**context.environment, "digest": digest})
            written.run_id = _put_run(connection, written.run_id, values, created)
            _put_points(connection, written.run_id, content, steps)
            _put_evaluations(connection, written.run_id, content)
        if context.sweep is not None and written.run_id is not None:
            _add_to_sweep(connection, context.sweep, written.run_id)
    return written


def _action(content: RunContent, digest: str, old: AnyRow | None) -> ImportAction:
    """Return what is to be done with a run.

    Args:
        digest: that of its content.
        old: step and environment of the run in the store; None if it is not there.
    """
    if old is None:
        return ImportAction.ADDED
    if content.last_step < old.step:
        # It may be another training in the same place.
        return ImportAction.SHORTER
    if (old.environment or {}).get("digest") == digest:
        return ImportAction.UNCHANGED
    return ImportAction.UPDATED


def _values(content: RunContent, environment: Mapping[str, Any]) -> dict[str, Any]:
    """Return the row of a run, without its id and the time when it was added."""
    return {
        "identity": content.identity,
        "attempt": 1,
        "config_hash": config_hash(content.config),
        "seed": content.seed,
        "estimator": content.config["estimator"]["name"],
        "backend": IMPORTED,
        "steps": content.last_step,
        "config": dict(content.config),
        "environment": dict(environment),
        "status": Status.DONE,
        "step": content.last_step,
        "finished": utc_now(),
        "stop_requested": False,
    }


def _put_run(
    connection: Connection,
    run_id: int | None,
    values: Mapping[str, Any],
    created: datetime | None,
) -> int:
    """Change the row of a run, or insert it if it has no id; return its id."""
    if run_id is not None:
        connection.execute(update(RUNS).where(RUNS.c.id == run_id).values(**values))
        return run_id
    adding = insert(RUNS).values(created=created or values["finished"], **values)
    return int(connection.execute(adding.returning(RUNS.c.id)).scalar_one())


def _add_to_sweep(connection: Connection, name: str, run_id: int) -> None:
    put(connection, SWEEPS, {"name": name, "spec": {IMPORTED: True}, "created": utc_now()})
    query = select(SWEEPS.c.id).where(SWEEPS.c.name == name)
    append_runs(connection, connection.execute(query).scalar_one(), [run_id])


def _put_points(
    connection: Connection, run_id: int, content: RunContent, steps: Int[np.ndarray, " steps"]
) -> None:
    ids = metric_ids(connection, content.curves)
    # What the log no longer says goes: other names, and steps that it has in another way.
    first = int(steps[0]) if len(steps) else 0
    stale = or_(POINTS.c.metric_id.not_in(list(ids.values())), POINTS.c.step >= first)
    connection.execute(delete(POINTS).where(POINTS.c.run_id == run_id, stale))
    for name in sorted(content.curves, key=ids.__getitem__):
        numbers, values = content.curves[name]
        for start in range(0, len(numbers), _CHUNK):
            chunk = slice(start, start + _CHUNK)
            points = zip(numbers[chunk].tolist(), values[chunk].tolist(), strict=True)
            rows = [(ids[name], step, value) for step, value in points]
            write_points(connection, run_id, rows)


def _put_evaluations(connection: Connection, run_id: int, content: RunContent) -> None:
    grouped: dict[tuple[int, str], list[ProblemCount]] = {}
    for result in content.evaluations:
        grouped.setdefault((result.step, result.task), []).append(result)
    kept = set()
    for (step, task), results in grouped.items():
        evaluation = _evaluation(content, run_id, step, task, results)
        kept.add(add_evaluation(connection, evaluation, utc_now()))
    linked = select(RUN_EVALUATIONS.c.evaluation_id).where(RUN_EVALUATIONS.c.run_id == run_id)
    ours = EVALUATIONS.c.settings["sampler"].as_string() == IMPORTED
    query = select(EVALUATIONS.c.id).where(EVALUATIONS.c.id.in_(linked), ours)
    stale = set(connection.execute(query).scalars()) - kept
    if stale:
        links = (RUN_EVALUATIONS.c.run_id == run_id, RUN_EVALUATIONS.c.evaluation_id.in_(stale))
        connection.execute(delete(RUN_EVALUATIONS).where(*links))
        connection.execute(delete(EVALUATIONS).where(EVALUATIONS.c.id.in_(stale)))
        remove_unused_problems(connection)


def _evaluation(
    content: RunContent, run_id: int, step: int, task: str, results: Sequence[ProblemCount]
) -> NewEvaluation:
    problems = [
        ProblemCounts(
            problem_id=result.problem,
            prompt="",
            level=0,
            n=result.n,
            c=result.correct,
        )
        for result in results
    ]
    subject = f"{content.identity}@{step}"
    digest = problems_digest([[p.problem_id, p.prompt, p.level] for p in problems])
    described = [subject, task, digest, [p.n for p in problems], [p.c for p in problems]]
    least = min(p.n for p in problems)
    named = task or content.config.get("task", {}).get("name") or IMPORTED
    return NewEvaluation(
        identity=hashlib.sha256(json.dumps(described).encode()).hexdigest(),
        subject=subject,
        run_id=run_id,
        step=step,
        task=str(named)[:_MAX_TEXT],
        settings={
            "n": least,
            "k": [k for k in (2**i for i in range(11)) if k <= max(least, 1)],
            "sampler": IMPORTED,
        },
        problems=problems,
    )
