"""Checks of stored values: of those that a failing command met, and of a store to be merged.

Reading does not check every value, and SQLite keeps any value in any column. `find_damage` finds
those that do not fit. The author of another store chose its values and, in SQLite, their types
and its tables too: a store that passes `check_store` could have been written by advsweep, and
every database accepts its values.
"""

from __future__ import annotations

import hashlib
import json
import math
from collections.abc import Mapping
from itertools import accumulate
from pathlib import PurePosixPath
from typing import TYPE_CHECKING, Any

from sqlalchemy import (
    JSON,
    BigInteger,
    Boolean,
    Column,
    Connection,
    Double,
    Enum,
    Integer,
    LargeBinary,
    String,
    select,
)
from sqlalchemy.types import TypeDecorator

from advsweep.errors import StoreError
from advsweep.printable import printable_line
from advsweep.store.evaluation_records import COUNTS, IN_NATS, MAX_CHARACTERS, MAX_SAMPLES
from advsweep.store.records import NewAnalysis, Status
from advsweep.store.run_folders import folder_name, is_hash, is_name, shown
from advsweep.store.tables import (
    ANALYSES,
    CHECKPOINTS,
    EVALUATION_SAMPLES,
    EVALUATIONS,
    METADATA,
    METRICS,
    POINTS,
    PROBLEM_SETS,
    RUN_EVALUATIONS,
    RUNS,
    SWEEPS,
    TRIALS,
    UtcDateTime,
)

if TYPE_CHECKING:
    from advsweep.store.store import Store

MAX_DEPTH = 64
"""Maximum depth of a JSON value."""
MAX_NAME = 200
"""Maximum length of the name of a sweep or a metric."""

_WHOLE = 2**31
"""Upper bound of steps and levels."""


LISTS = {"problem_sets.problems", "evaluation_samples.answers"}
"""The columns of JSON that hold lists; the others hold mappings."""


def find_damage(connection: Connection) -> str | None:
    """Return the first value that does not fit its column, with its place; None if all fit."""
    for table in METADATA.sorted_tables:
        for column in table.columns:
            wrong = f"NOT COALESCE({_fits(column)}, 0)"
            if column.nullable:
                wrong = f'"{column.name}" IS NOT NULL AND {wrong}'
            query = f'SELECT "{column.name}" FROM {table.name} WHERE {wrong} LIMIT 1'
            row = connection.exec_driver_sql(query).first()
            if row is not None:
                value = printable_line(repr(row[0])[:40])
                return f"a row of {table.name} has {value} in the column {column.name}"
        broken = connection.exec_driver_sql(f"PRAGMA foreign_key_check({table.name})").first()
        if broken is not None:
            return f"a row of {table.name} refers to one of {broken[2]} that does not exist"
    return None


def _fits(column: Column[object]) -> str:
    """Return an SQL condition that is true of the values which fit the column."""
    name, kind = f'"{column.name}"', column.type
    if isinstance(kind, UtcDateTime):
        return f"typeof({name}) = 'text' AND datetime({name}) IS NOT NULL"
    if isinstance(kind, TypeDecorator):
        kind = kind.impl_instance
    if isinstance(kind, JSON):
        expected = "array" if f"{column.table.name}.{column.name}" in LISTS else "object"
        # A nullable document is written as JSON's null.
        known = f"json_type({name}) IN ('{expected}', 'null')"
        return f"CASE WHEN json_valid({name}) THEN {known} END"
    if isinstance(kind, Enum):
        return f"{name} IN ({str(list(kind.enums))[1:-1]})"
    if isinstance(kind, Boolean | BigInteger):
        return f"typeof({name}) = 'integer'"
    if isinstance(kind, Integer):
        return f"typeof({name}) = 'integer' AND {name} BETWEEN -{2**31} AND {2**31 - 1}"
    if isinstance(kind, Double):
        return f"typeof({name}) IN ('real', 'integer')"
    if isinstance(kind, LargeBinary):
        return f"typeof({name}) = 'blob'"
    assert isinstance(kind, String), kind
    fits = f"typeof({name}) = 'text' AND instr({name}, char(0)) = 0"
    return f"{fits} AND length({name}) <= {kind.length}" if kind.length else fits


def check_store(store: Store, connection: Connection) -> None:
    """Check every value of a store.

    Args:
        connection: a transaction of the store.

    Raises:
        StoreError: the first value that advsweep cannot have written.
    """
    if store.file is not None and (damage := find_damage(connection)):
        raise _refusal(store, damage)
    for table, (query, check) in _CHECKS.items():
        documents = [column for column in table.columns if isinstance(column.type, JSON)]
        what = table.name
        try:
            for row in connection.execute(query):
                values = row._asdict()
                if "id" in values:
                    what = f"{table.name} {shown(values['id'])}"
                for column in documents:
                    value = values[column.name]
                    kind = list if str(column) in LISTS else dict
                    fits = isinstance(value, kind) or (value is None and bool(column.nullable))
                    _require(
                        fits and _is_json(value), column.name, f"a JSON {kind.__name__}", values
                    )
                check(values)
        except (StoreError, ValueError, TypeError, LookupError, RecursionError) as error:
            readable = isinstance(error, StoreError)
            why = str(error) if readable else f"a value cannot be read ({shown(str(error))})"
            raise _refusal(store, f"{what}: {why}") from error


def _refusal(store: Store, why: str) -> StoreError:
    return StoreError(
        f"{store.name} cannot be merged: {why}; it is damaged, or another program wrote it: take "
        "another copy of it"
    )


def _is_json(value: Any) -> bool:
    """Return whether every database accepts it: not too deep, finite numbers, no NUL."""
    level: list[Any] = [value]
    for _ in range(MAX_DEPTH):
        inner: list[Any] = []
        for node in level:
            if isinstance(node, dict):
                inner += [*node.keys(), *node.values()]
            elif isinstance(node, list):
                inner += node
            elif (isinstance(node, str) and "\0" in node) or (
                isinstance(node, float) and not math.isfinite(node)
            ):
                return False
        if not inner:
            return True
        level = inner
    return False


def _check_run(row: Mapping[str, Any]) -> None:
    folder_name(**{k: row[k] for k in ("identity", "attempt", "estimator", "seed")})
    _require(is_hash(row["config_hash"]), "config_hash", "64 hexadecimal digits", row)
    _require(is_name(row["backend"]), "backend", "lower-case letters, digits, underscores", row)
    _require(row["steps"] >= 0, "steps", "a whole number from 0", row)
    _require(0 <= row["step"] <= row["steps"], "step", f"0 to {row['steps']}", row)
    _require(row["status"] is not Status.LOST, "status", "one that is recorded", row)


def _check_named(row: Mapping[str, Any]) -> None:
    """Check the name of a sweep or a metric."""
    name = row["name"]
    _require(0 < len(name) <= MAX_NAME and name.isprintable(), "name", "a short line", row)


def _check_trial(row: Mapping[str, Any]) -> None:
    _require(row["number"] >= 0, "number", "a whole number from 0", row)
    _require(is_hash(row["config_hash"]), "config_hash", "64 hexadecimal digits", row)


def _check_step(row: Mapping[str, Any]) -> None:
    _require(0 <= row["step"] < _WHOLE, "step", "a whole number from 0", row)


def _check_checkpoint(row: Mapping[str, Any]) -> None:
    """Check that the path of a checkpoint stays in the folder of its run."""
    _check_step(row)
    folder = folder_name(**{k: row[k] for k in ("identity", "attempt", "estimator", "seed")})
    parts = PurePosixPath(row["path"]).parts
    inside = len(parts) > 1 and parts[0] == folder and ".." not in parts
    _require(inside and len(row["path"]) < 1000, "path", f"one below {folder}", row)


def _check_problems(row: Mapping[str, Any]) -> None:
    problems = row["problems"]
    fits = all(
        isinstance(name, str) and isinstance(prompt, str) and _is_count(abs(level))
        for name, prompt, level in problems
    )
    _require(fits, "problems", "a list of [id, prompt, level]", row)
    digest = hashlib.sha256(json.dumps(problems).encode()).hexdigest()
    _require(row["digest"] == digest, "digest", "the sha256 of the problems", row)


def _check_evaluation(row: Mapping[str, Any]) -> None:
    """Check an evaluation with its `problems` and its `answers`."""
    _require(is_hash(row["identity"]), "identity", "64 hexadecimal digits", row)
    for key in ("subject", "task"):
        _require(row[key].isprintable(), key, "a text of one line", row)
    ks = row["settings"]["k"]
    fits = isinstance(ks, list) and all(_is_count(k) and k > 0 for k in ks)
    _require(fits, "settings", "whole numbers as k", row)
    problems = {problem[0] for problem in row["problems"]}
    answers = row["answers"] or []
    fits = len(answers) <= MAX_SAMPLES and _is_json(answers)
    fits = fits and all(_is_answer(answer, problems) for answer in answers)
    _require(fits, "answers", "a short list of answers to its problems", row)
    # Older stores lack the last of them.
    in_nats = [key for key in IN_NATS if row[key] is not None]
    for key in (*COUNTS, *in_nats):
        fits = len(row[key]) == len(row["problems"]) and not bool((row[key] < 0).any())
        _require(fits, key, "a number from 0 for each problem", row)
    _require(bool((row["c"] <= row["n"]).all()), "c", "no more than n", row)
    if (of_right := row["right_counts"]) is not None:
        # Sums of Python's integers, as the arrays' own might overflow.
        sums = list(accumulate(of_right.tolist(), initial=0))
        ends = list(accumulate(row["c"].tolist(), initial=0))
        fits = set(ends) <= set(sums) and sums[-1] == ends[-1] and bool((of_right > 0).all())
        _require(fits, "right_counts", "counts that add up to c", row)


def _is_answer(answer: Any, problems: set[str]) -> bool:
    texts = [answer["answer"], answer["read"] or ""]
    reward = answer["reward"]
    return (
        answer.keys() == {"problem", "answer", "length", "read", "reward"}
        and answer["problem"] in problems
        and all(isinstance(text, str) and len(text) <= MAX_CHARACTERS for text in texts)
        and _is_count(answer["length"])
        and (reward is None or isinstance(reward, int | float))
    )


def _check_analysis(row: Mapping[str, Any]) -> None:
    _check_step(row)
    _require(is_name(row["kind"]), "kind", "a kind of analysis", row)
    # The identity is a digest of the settings, so it can be checked.
    described = NewAnalysis(**{k: row[k] for k in ("kind", "step", "settings", "result")})
    _require(row["identity"] == described.identity, "identity", "that of its settings", row)


def _is_count(value: object) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and 0 <= value < _WHOLE


def _require(fits: bool, what: str, expected: str, row: Mapping[str, Any]) -> None:
    if not fits:
        raise StoreError(f"{what}: expected {expected}, got {shown(row[what])}")


_OF_FOLDER = (RUNS.c.identity, RUNS.c.attempt, RUNS.c.estimator, RUNS.c.seed)

_CHECKS = {
    RUNS: (select(RUNS), _check_run),
    SWEEPS: (select(SWEEPS), _check_named),
    TRIALS: (select(TRIALS), _check_trial),
    METRICS: (select(METRICS), _check_named),
    # There may be millions, and their types are checked.
    POINTS: (select(POINTS).where(POINTS.c.step < 0).limit(1), _check_step),
    CHECKPOINTS: (select(CHECKPOINTS, *_OF_FOLDER).join(RUNS), _check_checkpoint),
    PROBLEM_SETS: (select(PROBLEM_SETS), _check_problems),
    EVALUATIONS: (
        select(EVALUATIONS, PROBLEM_SETS.c.problems, EVALUATION_SAMPLES.c.answers)
        .join(PROBLEM_SETS)
        .outerjoin(EVALUATION_SAMPLES),
        _check_evaluation,
    ),
    RUN_EVALUATIONS: (select(RUN_EVALUATIONS), _check_step),
    ANALYSES: (select(ANALYSES), _check_analysis),
}
"""What is read of each table, and the check of each row."""
