"""Checks of stored values: of those that a failing command met, and of a store to be merged.

Reading does not check every value, and SQLite keeps any value in any column. `find_damage` finds
those that do not fit. The author of another store chose its values and, in SQLite, their types
and its tables too: a store that passes `check_store` could have been written by advsweep, and
every database accepts its values.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from itertools import accumulate
from pathlib import PurePosixPath
from typing import TYPE_CHECKING, Any

import sqlalchemy as sa
from sqlalchemy import select
from sqlalchemy.types import TypeDecorator

from advsweep.errors import StoreError
from advsweep.printable import printable_line
from advsweep.store import tables
from advsweep.store.analysis_records import NewAnalysis
from advsweep.store.evaluation_records import COUNTS, IN_NATS, MAX_CHARACTERS, MAX_SAMPLES
from advsweep.store.evaluations import problems_digest
from advsweep.store.records import Status
from advsweep.store.run_folders import folder_name, is_hash, is_name, is_whole, shown

if TYPE_CHECKING:
    import numpy as np

    from advsweep.store.store import Store

# Maximum depth of a JSON value.
MAX_DEPTH = 64
# Maximum length of the name of a sweep or a metric.
MAX_NAME = 200

# The columns of JSON that hold lists; the others hold mappings.
LISTS = {"problem_sets.problems", "evaluation_samples.answers", "sweeps.tags"}


def find_damage(connection: sa.Connection) -> str | None:
    """Return the first value that does not fit its column, with its place; None if all fit."""
    for table in tables.METADATA.sorted_tables:
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


def _fits(column: sa.Column[object]) -> str:
    """Return an SQL condition that is true of the values which fit the column."""
    name, kind = f'"{column.name}"', column.type
    if isinstance(kind, tables.UtcDateTime):
        return f"typeof({name}) = 'text' AND datetime({name}) IS NOT NULL"
    if isinstance(kind, TypeDecorator):
        kind = kind.impl_instance
    if isinstance(kind, sa.JSON):
        expected = "array" if str(column) in LISTS else "object"
        # A nullable document is written as JSON's null.
        is_expected = f"json_type({name}) IN ('{expected}', 'null')"
        return f"CASE WHEN json_valid({name}) THEN {is_expected} END"
    if isinstance(kind, sa.Enum):
        return f"{name} IN ({str(list(kind.enums))[1:-1]})"
    if isinstance(kind, sa.Boolean | sa.BigInteger):
        return f"typeof({name}) = 'integer'"
    if isinstance(kind, sa.Integer):
        return f"typeof({name}) = 'integer' AND {name} BETWEEN -{2**31} AND {2**31 - 1}"
    if isinstance(kind, sa.Double):
        return f"typeof({name}) IN ('real', 'integer')"
    if isinstance(kind, sa.LargeBinary):
        return f"typeof({name}) = 'blob'"
    assert isinstance(kind, sa.String), kind
    fits = f"typeof({name}) = 'text' AND instr({name}, char(0)) = 0"
    return f"{fits} AND length({name}) <= {kind.length}" if kind.length else fits


def check_store(store: Store, connection: sa.Connection) -> None:
    """Check every value of a store.

    Args:
        connection: a transaction of the store.

    Raises:
        StoreError: the first value that advsweep cannot have written.
    """
    why = find_damage(connection) if store.file is not None else None
    if why is None:
        findings = (_find_wrong_row(connection, table) for table in _CHECKS)
        why = next((finding for finding in findings if finding is not None), None)
    if why is not None:
        raise StoreError(
            f"{store.name} cannot be merged: {why}; it is damaged, or another program wrote it: "
            "take another copy of it"
        )


def _find_wrong_row(connection: sa.Connection, table: sa.Table) -> str | None:
    """Return what is wrong with the first row of a table that advsweep cannot have written."""
    query, check = _CHECKS[table]
    what = table.name
    try:
        for row in connection.execute(query):
            values = row._asdict()
            if "id" in values:
                what = f"{table.name} {shown(values['id'])}"
            for column in table.columns:
                _check_value(column, values)
            if check is not None:
                check(values)
    except StoreError as error:
        return f"{what}: {error}"
    except (ValueError, TypeError, LookupError, RecursionError) as error:
        return f"{what}: a value cannot be read ({shown(str(error))})"
    return None


def _check_value(column: sa.Column[Any], row: Mapping[str, Any]) -> None:
    """Check the value of a column in a row.

    Raises:
        StoreError: advsweep does not write such a value.
    """
    name = column.name
    if isinstance(column.type, sa.JSON):
        kind = list if str(column) in LISTS else dict
        is_absent = row[name] is None and bool(column.nullable)
        fits = isinstance(row[name], kind) or is_absent
        _require(fits and _is_json(row[name]), name, f"a JSON {kind.__name__}", row)
    elif name in _VALUES:
        is_sound, expected = _VALUES[name]
        _require(is_sound(row[name]), name, expected, row)


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


def _is_count(value: object) -> bool:
    return is_whole(value, 0, 2**31)


_HASH = (is_hash, "64 hexadecimal digits")
_WORD = (is_name, "lower-case letters, digits and underscores")
_COUNT = (_is_count, "a whole number from 0")

# What is expected of a column of this name, in whatever table.
_VALUES: Mapping[str, tuple[Callable[[Any], bool], str]] = {
    **dict.fromkeys(("identity", "config_hash", "digest"), _HASH),
    **dict.fromkeys(("estimator", "backend", "kind"), _WORD),
    **dict.fromkeys(("step", "steps"), _COUNT),
    **dict.fromkeys(("subject", "task"), (str.isprintable, "a text of one line")),
    "name": (lambda name: 0 < len(name) <= MAX_NAME and name.isprintable(), "a short line"),
    "status": (lambda status: status is not Status.LOST, "one that is recorded"),
}


def _require(fits: bool, what: str, expected: str, row: Mapping[str, Any]) -> None:
    if not fits:
        raise StoreError(f"{what}: expected {expected}, got {shown(row[what])}")


def _folder_of(row: Mapping[str, Any]) -> str:
    return folder_name(**{k: row[k] for k in ("identity", "attempt", "estimator", "seed")})


def _check_run(row: Mapping[str, Any]) -> None:
    _folder_of(row)
    _require(row["step"] <= row["steps"], "step", f"0 to {row['steps']}", row)


def _check_checkpoint(row: Mapping[str, Any]) -> None:
    """Check that the path of a checkpoint stays in the folder of its run."""
    folder = _folder_of(row)
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
    digest = problems_digest(problems)
    _require(row["digest"] == digest, "digest", "the sha256 of the problems", row)


def _check_evaluation(row: Mapping[str, Any]) -> None:
    """Check an evaluation with its `problems` and its `answers`."""
    ks = row["settings"]["k"]
    fits = isinstance(ks, list) and all(_is_count(k) and k > 0 for k in ks)
    _require(fits, "settings", "whole numbers as k", row)
    problems = {problem[0] for problem in row["problems"]}
    answers = row["answers"] or []
    fits = len(answers) <= MAX_SAMPLES and _is_json(answers)
    fits = fits and all(_is_answer(answer, problems) for answer in answers)
    _require(fits, "answers", "a short list of answers to its problems", row)
    for key in (*COUNTS, *IN_NATS):
        numbers = row[key]
        # Older stores lack the last of them.
        if numbers is not None:
            fits = len(numbers) == len(row["problems"]) and not bool((numbers < 0).any())
            _require(fits, key, "a number from 0 for each problem", row)
    _require(bool((row["c"] <= row["n"]).all()), "c", "no more than n", row)
    if row["right_counts"] is not None:
        fits = _add_up(row["right_counts"], row["c"])
        _require(fits, "right_counts", "counts that add up to c", row)


def _add_up(parts: np.ndarray[Any, Any], wholes: np.ndarray[Any, Any]) -> bool:
    """Return whether parts above 0, one whole after another, add up to the wholes."""
    # Sums of Python's integers, as the arrays' own might overflow.
    sums = list(accumulate(parts.tolist(), initial=0))
    ends = list(accumulate(wholes.tolist(), initial=0))
    return set(ends) <= set(sums) and sums[-1] == ends[-1] and bool((parts > 0).all())


def _is_answer(answer: Any, problems: set[str]) -> bool:
    texts = [answer["answer"], answer["read"] or ""]
    return (
        answer.keys() == {"problem", "answer", "length", "read", "reward"}
        and answer["problem"] in problems
        and all(isinstance(text, str) and len(text) <= MAX_CHARACTERS for text in texts)
        and _is_count(answer["length"])
        and isinstance(answer["reward"], int | float | None)
    )


def _check_analysis(row: Mapping[str, Any]) -> None:
    # The identity is a digest of the settings, so it can be checked.
    described = NewAnalysis(**{k: row[k] for k in ("kind", "step", "settings", "result")})
    _require(row["identity"] == described.identity, "identity", "that of its settings", row)


_RUNS, _SETS, _EVALUATIONS = tables.RUNS, tables.PROBLEM_SETS, tables.EVALUATIONS
_OF_FOLDER = (_RUNS.c.identity, _RUNS.c.attempt, _RUNS.c.estimator, _RUNS.c.seed)

# What is read of each table, and what is checked of a row besides single values.
_CHECKS: Mapping[sa.Table, tuple[sa.Select[Any], Callable[[Mapping[str, Any]], None] | None]] = {
    _RUNS: (select(_RUNS), _check_run),
    tables.SWEEPS: (select(tables.SWEEPS), None),
    tables.METRICS: (select(tables.METRICS), None),
    # There may be millions, and their types are checked.
    tables.POINTS: (select(tables.POINTS).where(tables.POINTS.c.step < 0).limit(1), None),
    tables.CHECKPOINTS: (select(tables.CHECKPOINTS, *_OF_FOLDER).join(_RUNS), _check_checkpoint),
    _SETS: (select(_SETS), _check_problems),
    _EVALUATIONS: (
        select(_EVALUATIONS, _SETS.c.problems, tables.EVALUATION_SAMPLES.c.answers)
        .join(_SETS)
        .outerjoin(tables.EVALUATION_SAMPLES),
        _check_evaluation,
    ),
    tables.RUN_EVALUATIONS: (select(tables.RUN_EVALUATIONS), None),
    tables.ANALYSES: (select(tables.ANALYSES), _check_analysis),
}
