"""Checks of the rows of another store before a merge copies them.

The author of the other store chose its values and, in SQLite, their types and its tables too.
Rows that pass could have been written by advsweep, and every database accepts them. Each check
raises `ForeignError`, which names the column, the expected and the actual value.
"""

from __future__ import annotations

import hashlib
import json
import math
from collections.abc import Iterator, Mapping, Sequence, Set
from contextlib import contextmanager
from datetime import datetime
from itertools import accumulate
from pathlib import PurePosixPath
from typing import Any

import numpy as np
from sqlalchemy import JSON, BigInteger, Boolean, Double, Enum, Integer, String, Table
from sqlalchemy.types import TypeEngine

from advsweep.errors import AdvsweepError, StoreError
from advsweep.store.evaluation_records import COUNTS, IN_NATS
from advsweep.store.records import NewAnalysis, Status
from advsweep.store.run_folders import folder_name, is_hash, is_name, shown
from advsweep.store.samples import MAX_CHARACTERS, MAX_SAMPLES
from advsweep.store.tables import (
    ANALYSES,
    EVALUATIONS,
    RUNS,
    SWEEPS,
    TRIALS,
    Packed,
    UtcDateTime,
)

MAX_DEPTH = 64
"""Maximum depth of a JSON value."""
MAX_NAME = 200
"""Maximum length of the name of a sweep, a metric or a task."""

_WHOLE = 2**31
"""Upper bound of integer columns other than BIGINT."""


class ForeignError(StoreError):
    """A row of another store cannot have been written by advsweep."""


@contextmanager
def reading() -> Iterator[None]:
    """Turns exceptions from reading a malformed value into a `ForeignError`."""
    try:
        yield
    except AdvsweepError:
        raise
    except (ValueError, TypeError, LookupError, RecursionError, OverflowError) as error:
        why = f"{type(error).__name__}: {error}"
        raise ForeignError(f"a value cannot be read ({shown(why)})") from error


def check_run(row: Mapping[str, Any]) -> None:
    """Checks a row of `runs`."""
    check_types(RUNS, row)
    try:
        folder_name(**{k: row[k] for k in ("identity", "attempt", "estimator", "seed")})
    except StoreError as error:
        raise ForeignError(str(error)) from error
    _require(is_hash(row["config_hash"]), "config_hash", "64 hexadecimal digits", row)
    _require(is_name(row["backend"]), "backend", "lower-case letters, digits, underscores", row)
    _require(row["steps"] >= 0, "steps", "a whole number from 0", row)
    _require(0 <= row["step"] <= row["steps"], "step", f"0 to {row['steps']}", row)
    for key in ("config", "environment", "stopping"):
        _require(row[key] is None or isinstance(row[key], dict), key, "a mapping", row)
    known = [status for status in Status if status is not Status.LOST]
    _require(row["status"] in known, "status", "one that is recorded", row)


def check_types(table: Table, row: Mapping[str, Any]) -> None:
    """Checks that the columns of a table can hold the values in every database."""
    for column in table.columns:
        if column.name not in row:
            continue
        value = row[column.name]
        if value is None:
            _require(bool(column.nullable), column.name, "a value", row)
        elif fault := _fault(column.type, value):
            raise ForeignError(f"{column.name}: expected {fault}, got {shown(value)}")


def _fault(kind: TypeEngine[Any], value: Any) -> str | None:
    """Returns what the type of a column expects, or None if the value fits."""
    if isinstance(kind, Boolean):
        return None if isinstance(value, bool) else "true or false"
    if isinstance(kind, Integer):
        limit = 2**63 if isinstance(kind, BigInteger) else _WHOLE
        return None if _is_whole(value) and -limit <= value < limit else "a whole number in range"
    if isinstance(kind, Double):
        return None if _is_number(value) else "a number"
    if isinstance(kind, Enum):
        return None if isinstance(value, kind.enum_class or ()) else "a known name"
    if isinstance(kind, String):
        fits = isinstance(value, str) and len(value) <= (kind.length or len(value))
        return None if fits and "\0" not in value else "a text without NUL"
    if isinstance(kind, UtcDateTime):
        return None if isinstance(value, datetime) else "a time"
    if isinstance(kind, JSON):
        return None if isinstance(value, (dict, list)) and _is_json(value) else "plain JSON"
    assert isinstance(kind, Packed), kind
    return None if isinstance(value, np.ndarray) else "an array"


def _is_json(value: Any) -> bool:
    """Returns whether every database accepts it: not too deep, text keys, finite numbers."""
    level: list[Any] = [value]
    for _ in range(MAX_DEPTH):
        inner: list[Any] = []
        for node in level:
            if isinstance(node, dict):
                inner += node.keys()
                inner += node.values()
            elif isinstance(node, list):
                inner += node
            elif isinstance(node, str):
                if "\0" in node:
                    return False
            elif not (node is None or isinstance(node, (bool, int))) and not (
                isinstance(node, float) and math.isfinite(node)
            ):
                return False
        if not inner:
            return True
        level = inner
    return False


def check_points(points: Sequence[tuple[Any, Any, Any]]) -> None:
    """Checks metric points (name, step, value)."""
    for name, step, value in points:
        if not (is_printable(name) and _is_step(step) and _is_number(value)):
            raise ForeignError(
                f"metrics: expected a name, a step and a number, got {shown((name, step, value))}"
            )
    if len({(name, step) for name, step, _ in points}) < len(points):
        raise ForeignError("metrics: expected one value for each name and step, got several")


def check_summaries(values: Mapping[Any, Any]) -> None:
    """Checks the summaries of a run."""
    for name, value in values.items():
        if not (is_printable(name) and _is_number(value)):
            raise ForeignError(f"summaries: expected names and numbers, got {shown((name, value))}")


def check_checkpoint(row: Mapping[str, Any], folder: str) -> None:
    """Checks that the path of a row of `checkpoints` stays in the run's folder.

    Args:
        folder: the name of the run's folder.
    """
    _require(_is_step(row["step"]), "checkpoint's step", "a whole number", row, "step")
    _require(isinstance(row["created"], datetime), "created", "a time", row)
    path = row["path"]
    fits = isinstance(path, str) and "\0" not in path and len(path) < 1000
    parts = PurePosixPath(path).parts if fits else ()
    inside = len(parts) > 1 and parts[0] == folder and ".." not in parts
    _require(inside, "checkpoint's path", f"one below {folder}", row, "path")


def check_sweep(row: Mapping[str, Any]) -> None:
    """Checks a row of `sweeps`."""
    check_types(SWEEPS, row)
    _require(is_printable(row["name"]), "name", "a short text of one line", row)
    _require(isinstance(row["spec"], dict), "spec", "a mapping", row)


def without_choices(spec: Mapping[str, Any]) -> dict[str, Any]:
    """Returns the spec of a sweep without its executor, its settings and its trackers.

    The present command line chooses these, and no store. The resources of each run stay; they
    are checked where they are used.
    """
    merged = {key: value for key, value in spec.items() if key not in ("settings", "tracking")}
    settings = spec.get("settings")
    if isinstance(settings, dict) and isinstance(settings.get("resources"), dict):
        merged["settings"] = {"resources": settings["resources"]}
    return merged


def check_trials(rows: Sequence[Mapping[str, Any]]) -> None:
    """Checks the trials of a sweep."""
    for row in rows:
        check_types(TRIALS, row)
        _require(row["number"] >= 0, "number", "a whole number from 0", row)
        _require(isinstance(row["params"], dict), "params", "a mapping", row)
        _require(is_hash(row["config_hash"]), "config_hash", "64 hexadecimal digits", row)
    if len({row["number"] for row in rows}) < len(rows):
        raise ForeignError("trials: expected each number once, got several")


def check_evaluation(row: Mapping[str, Any]) -> None:
    """Checks a row of `evaluations` with its `problems`."""
    check_types(EVALUATIONS, row)
    _require(is_hash(row["identity"]), "identity", "64 hexadecimal digits", row)
    for key in ("subject", "task"):
        _require(row[key].isprintable(), key, "a text of one line", row)
    settings, problems = row["settings"], row["problems"]
    ks = settings.get("k") if isinstance(settings, dict) else None
    _require(
        isinstance(ks, list) and all(_is_step(k) and k > 0 for k in ks),
        "settings",
        "a mapping with a list of whole numbers as k",
        row,
    )
    _require(
        isinstance(problems, list) and _is_json(problems) and all(map(_is_problem, problems)),
        "problems",
        "a list of [id, prompt, level]",
        row,
    )
    digest = hashlib.sha256(json.dumps(problems).encode()).hexdigest()
    _require(row["digest"] == digest, "digest", "the sha256 of the problems", row)
    if row["answers"] is not None:
        _check_answers(row, {problem[0] for problem in problems})
    # Older stores lack the last of them.
    in_nats = [key for key in IN_NATS if row[key] is not None]
    for key in (*COUNTS, *in_nats):
        _require(len(row[key]) == len(problems), key, "a number for each problem", row)
    _require(bool((row["c"] <= row["n"]).all()), "c", "no more than n", row)
    for key in in_nats:
        _require(not bool((row[key] < 0).any()), key, "numbers from 0", row)
    if (of_right := row["right_counts"]) is not None:
        # Sums of Python's integers, as the arrays' own might overflow.
        sums = list(accumulate(of_right.tolist(), initial=0))
        ends = list(accumulate(row["c"].tolist(), initial=0))
        fits = set(ends) <= set(sums) and sums[-1] == ends[-1] and bool((of_right > 0).all())
        _require(fits, "right_counts", "counts that add up to c", row)


def _check_answers(row: Mapping[str, Any], problems: Set[str]) -> None:
    """Checks the kept answers of an evaluation of some problems."""
    answers = row["answers"]
    fits = (
        isinstance(answers, list)
        and len(answers) <= MAX_SAMPLES
        and _is_json(answers)
        and all(_is_answer(answer, problems) for answer in answers)
    )
    _require(fits, "answers", "a short list of answers to its problems", row)


def _is_answer(answer: Any, problems: Set[str]) -> bool:
    keys = {"problem", "answer", "length", "read", "reward"}
    return (
        isinstance(answer, dict)
        and answer.keys() == keys
        and answer["problem"] in problems
        and _is_short(answer["answer"])
        and _is_step(answer["length"])
        and (answer["read"] is None or _is_short(answer["read"]))
        and (answer["reward"] is None or _is_number(answer["reward"]))
    )


def _is_short(text: object) -> bool:
    return isinstance(text, str) and len(text) <= MAX_CHARACTERS


def check_link(row: Mapping[str, Any]) -> None:
    """Checks an evaluation of a run with the `step` of its weights."""
    _require(_is_step(row["step"]), "step", "a whole number from 0", row)
    check_evaluation(row)


def _is_problem(problem: Any) -> bool:
    if not isinstance(problem, list) or len(problem) != 3:
        return False
    name, prompt, level = problem
    fits = _is_whole(level) and -_WHOLE <= level < _WHOLE
    return isinstance(name, str) and isinstance(prompt, str) and fits


def check_analysis(row: Mapping[str, Any]) -> None:
    """Checks a row of `analyses`."""
    check_types(ANALYSES, row)
    _require(row["step"] >= 0, "step", "a whole number from 0", row)
    for key in ("settings", "result"):
        _require(isinstance(row[key], dict), key, "a mapping", row)
    _require(is_name(row["kind"]), "kind", "a kind of analysis", row)
    # The identity is a digest of the settings, so it can be checked.
    described = NewAnalysis(
        kind=row["kind"], step=row["step"], settings=row["settings"], result=row["result"]
    )
    _require(row["identity"] == described.identity, "identity", "that of its settings", row)


def is_printable(value: object) -> bool:
    """Returns whether a value can be a name: one line, not empty and not too long."""
    return isinstance(value, str) and 0 < len(value) <= MAX_NAME and value.isprintable()


def _is_whole(value: object) -> bool:
    return isinstance(value, int) and not isinstance(value, bool)


def _is_number(value: object) -> bool:
    return isinstance(value, float) or _is_whole(value)


def _is_step(value: object) -> bool:
    return isinstance(value, int) and _is_whole(value) and 0 <= value < _WHOLE


def _require(
    fits: bool, what: str, expected: str, row: Mapping[str, Any], key: str | None = None
) -> None:
    if not fits:
        raise ForeignError(f"{what}: expected {expected}, got {shown(row[key or what])}")
