"""Columns that tell the runs of one file apart, and those that name settings.

A text that is the same on all lines of a run is a setting of it. Lines of one run and one step
that give a metric two values are told apart by some column, or one of them would be lost:

    run,step,benchmark,accuracy
    a,50,aime,0.167
    a,50,amc,0.525            refused, with `--by benchmark`
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, NamedTuple

from advsweep.logs.names import LoggedStep, parse_value

# Names of the estimator in tables; the first that a table has counts.
ESTIMATORS = (
    "estimator",
    "adv_estimator",
    "advantage_estimator",
    "method",
    "algorithm",
    "algo",
    "alg",
    "rl_algorithm",
    "rl_algo",
    "rl_method",
    "approach",
    "estimator.name",
    "config.estimator",
    "algorithm.adv_estimator",
    "algorithm/adv_estimator",
    "algo.advantage.estimator",
    "loss_type",
)

SEEDS = ("seed", "random_seed", "rng_seed", "seed_id", "training_seed", "train_seed")

RUNS = (
    "run",
    "run_id",
    "run_name",
    "name",
    "experiment",
    "experiment_name",
    "exp",
    "exp_name",
    "trial",
    "trial_id",
    "replicate",
)

# Names of runs that may also be those of settings.
_NAMES = frozenset({"name", "experiment", "exp", "unnamed:_0"})

# Columns that tell the runs of one file apart without being named. The order is that of the parts
# of a run's source, by which stores know it.
BY = (
    "estimator",
    "seed",
    "run",
    "run_id",
    "run_name",
    *ESTIMATORS[1:],
    *SEEDS[1:],
    *RUNS[3:],
)

# Further columns by which results are told apart, also where their values are numbers.
_USUAL = frozenset(
    {
        "benchmark",
        "dataset",
        "data",
        "task",
        "tasks",
        "split",
        "subset",
        "phase",
        "mode",
        "eval",
        "eval_set",
        "model",
        "variant",
        "config",
        "condition",
        "group",
        "setting",
        "k",
        "n",
        "level",
        "difficulty",
        "fold",
        "temperature",
        "lr",
        "learning_rate",
        "metric",
    }
)

# Columns that differ between the parts of one run, as after a resume.
_OF_A_PART = re.compile(
    r"_?(?:.*[_ ./-])?(?:time|timestamp|datetime|date|created|started|ended|elapsed|runtime|host|"
    r"hostname|node|machine|pid|rank|dir|directory|path|file|filename|restarts?|resumes?|resumed|"
    r"attempts?|retry|retries|commit|sha|uuid|message|level_name|logger)(?:_?\d+)?",
    re.IGNORECASE,
)

# Numbers that count within a step.
_COUNTER = re.compile(
    r"(?:.*[_ ./-])?(?:epochs?|mini_?batch|micro_?batch|batch|iter|iteration|updates?|.*steps?)"
    r"(?:_?(?:id|idx|index|num))?",
    re.IGNORECASE,
)

_DATE = re.compile(r"\d{4}-\d\d-\d\d[T ]\d\d:\d\d.*|\d\d:\d\d:\d\d.*|\d{1,2}/\d{1,2}/\d{2,4}.*")

_TIMES = re.compile(
    r"_?(?:.*[_ ./-])?(?:time|timestamp|datetime|date|created|started|ended|elapsed)"
)

# A run in the name of a column: grpo_seed0, grpo-s1, seed 2.
_RUN_IN_COLUMN = re.compile(
    r"(?P<stem>.*?)(?:(?<![A-Za-z])|_)(?:seed[_ -]?|s)\d{1,6}", re.IGNORECASE
)

# Estimators by which columns are called; two of them are no metrics.
NAMES_OF_ESTIMATORS = frozenset(
    {
        "grpo",
        "dr_grpo",
        "drgrpo",
        "dapo",
        "gspo",
        "rloo",
        "ppo",
        "gae",
        "gpg",
        "opo",
        "remax",
        "reinforce",
        "reinforce++",
        "reinforce_plus_plus",
        "reinforce_plus_plus_baseline",
    }
)

# Columns that are proposed at once.
_PROPOSED = 3

# Lines of a run that are kept for the question which column tells them apart.
_MOST_LINES = 20_000


class Line(NamedTuple):
    """A line of a log: its step with numbers, and its texts."""

    logged: LoggedStep
    texts: Mapping[str, str]


class Collision(NamedTuple):
    """Two values of a metric in one run and step, and the columns that tell their lines apart.

    Attributes:
        by: columns that tell all lines of the run apart; of texts also where they do not do so;
            empty for none.
        parts_all: whether no two lines collide with these columns.
    """

    step: int
    metric: str
    values: tuple[float, float]
    by: tuple[str, ...]
    parts_all: bool


def usual_name(column: str) -> str:
    """Return the name of a column as it is compared with usual names.

    >>> usual_name("Global Step"), usual_name("Run-ID")
    ('global_step', 'run_id')
    """
    return re.sub(r"[\s-]+", "_", column.strip()).lower()


def named_settings(texts: Mapping[str, Any]) -> dict[str, Any]:
    """Return settings with `estimator` and `seed` in place of what else these are called.

    >>> named_settings({"method": "mine", "random_seed": "3", "loss_type": "dapo"})
    {'loss_type': 'dapo', 'estimator': 'mine', 'seed': '3'}
    """
    settings = dict(texts)
    usual = {usual_name(name): name for name in reversed(settings)}
    for ours, names in (("estimator", ESTIMATORS), ("seed", SEEDS)):
        theirs = next((usual[name] for name in names if name in usual), None)
        if theirs is None or theirs == ours or isinstance(settings[theirs], (Mapping, list)):
            continue
        settings.setdefault(ours, settings.pop(theirs))
    return settings


def without_names_of_runs(
    configs: Sequence[Mapping[str, Any]], others: Sequence[Mapping[str, Any]]
) -> list[dict[str, Any]]:
    """Return settings in which a name of a run that tells no settings apart is its `run_name`.

    In the table of runs that wandb exports, `Name` is a name for each run. Where the estimator is
    known, and no two runs agree in all other settings and the seed, it tells nothing beyond them.
    Where two do, what the name says besides the seed is a setting: `grpo-lr1e-6` of
    `grpo-lr1e-6-s0`.

    Args:
        configs: the settings of the runs of one file, with `estimator` where it is known.
        others: what the command says of each run.
    """
    result = [dict(config) for config in configs]
    merged = [{**config, **other} for config, other in zip(configs, others, strict=True)]
    if not all("estimator" in config for config in merged):
        return result
    has_seeds = all(config.get("seed") is not None for config in merged)
    names = {key for config in result for key in config if usual_name(key) in _NAMES}
    for key in sorted(names):
        if not all(key in config for config in result):
            continue
        keeps_rest = has_seeds and not _tell_apart(merged, key)
        for config, whole in zip(result, merged, strict=True):
            name = str(config.pop(key))
            config.setdefault("run_name", name)
            if keeps_rest:
                config[key] = _without_seed(name, str(whole["seed"]))
    return result


def _tell_apart(configs: Iterable[Mapping[str, Any]], left_out: str) -> bool:
    """Return whether any two configs still differ if one key is left out of both."""
    texts = [
        repr(sorted((name, str(value)) for name, value in config.items() if name != left_out))
        for config in configs
    ]
    return len(set(texts)) == len(texts)


def _without_seed(name: str, seed: str) -> str:
    """Return the name of a run without its seed.

    >>> _without_seed("grpo-lr1e-6-s10", "10"), _without_seed("seed_3 mine", "3")
    ('grpo-lr1e-6', 'mine')
    """
    pattern = rf"[-_. ]*(?<![A-Za-z0-9])(?:seed|s)?[-_ =]?{re.escape(seed)}(?![0-9.])[-_. ]*"
    return re.sub(pattern, "-", name, count=1, flags=re.IGNORECASE).strip("-")


def parsed(texts: Mapping[str, str]) -> dict[str, Any]:
    """Return settings that were written as texts; a name stays the text that it is.

    >>> parsed({"estimator": "1e5", "seed": "07", "thinking": "False"})
    {'estimator': '1e5', 'seed': '07', 'thinking': False}
    """
    values: dict[str, Any] = {}
    for key, text in texts.items():
        is_name = usual_name(key) in ESTIMATORS or usual_name(key) in RUNS
        is_truth = text in ("True", "False")
        values[key] = text if is_name else parse_value(text.lower() if is_truth else text)
    return values


def is_moment(name: str, text: str) -> bool:
    """Return whether a text is a time, which tells no settings apart.

    >>> is_moment("Created", "x"), is_moment("note", "2025-01-01T10:00:00"), is_moment("a", "b")
    (True, True, False)
    """
    return bool(_TIMES.fullmatch(usual_name(name)) or _DATE.fullmatch(text))


def columns_of_runs(columns: Iterable[str]) -> list[str]:
    """Return columns that are runs and no metrics: a name with two seeds, or two estimators.

    >>> columns_of_runs(["step", "grpo_s0", "grpo_s1", "loss"]), columns_of_runs(["pass_s1"])
    (['grpo_s0', 'grpo_s1'], [])
    """
    by_stem: dict[str, list[str]] = {}
    for column in columns:
        if match := _RUN_IN_COLUMN.fullmatch(column):
            by_stem.setdefault(match["stem"], []).append(column)
        elif usual_name(column) in NAMES_OF_ESTIMATORS:
            by_stem.setdefault("", []).append(column)
    return [name for names in by_stem.values() if len(names) > 1 for name in names]


def find_collision(lines: Sequence[Line]) -> Collision | None:
    """Return what makes lines of one run no single run; None if nothing does.

    A step that is logged again after a resume is no collision: no column tells its lines apart,
    and the last counts. A training that has reached its last step is not resumed, so that lines
    which give most steps and the last one two values are of several runs.
    """
    if _is_rising(lines):
        return None
    collision = _first_conflict(lines, by=())
    if collision is None:
        return None
    first, second, metric = collision
    texts = [
        name
        for name in dict.fromkeys([*first.texts, *second.texts])
        if first.texts.get(name) != second.texts.get(name) and _is_key(name, first, second)
    ]
    candidates = _parting(lines, texts)
    if not texts and _is_usual_conflict(lines):
        candidates = _parting(lines, _numbers_that_repeat(lines))
    by = candidates or tuple(texts[:_PROPOSED])
    if not by and not (_is_usual_conflict(lines) and _ends_twice(lines)):
        return None
    return Collision(
        step=first.logged.step,
        metric=metric,
        values=(first.logged.values[metric], second.logged.values[metric]),
        by=by,
        parts_all=bool(candidates),
    )


def _is_rising(lines: Sequence[Line]) -> bool:
    last = -1
    for line in lines:
        if line.logged.step <= last:
            return False
        last = line.logged.step
    return True


def _first_conflict(lines: Sequence[Line], by: Iterable[str]) -> tuple[Line, Line, str] | None:
    """Return two lines that give a metric two values, where the columns `by` agree."""
    columns = tuple(by)
    seen: dict[tuple[Any, ...], tuple[float, Line]] = {}
    for line in lines:
        step, values = line.logged
        key = (step, *(_value(line, name) for name in columns))
        for metric, value in values.items():
            if metric in columns:
                continue
            old, before = seen.setdefault((*key, metric), (value, line))
            if old != value:
                return before, line, metric
    return None


def _is_usual_conflict(lines: Sequence[Line]) -> bool:
    """Return whether most steps have two values of a metric; after a resume a few have."""
    seen: dict[tuple[int, str], float] = {}
    conflicting: set[int] = set()
    for line in lines:
        step, values = line.logged
        for metric, value in values.items():
            if seen.setdefault((step, metric), value) != value:
                conflicting.add(step)
    return 2 * len(conflicting) > len({line.logged.step for line in lines})


def _ends_twice(lines: Sequence[Line]) -> bool:
    """Return whether the last of several steps has two values of a metric."""
    steps = {line.logged.step for line in lines}
    at_end = [line for line in lines if line.logged.step == max(steps)]
    return len(steps) > 1 and _first_conflict(at_end, by=()) is not None


def _value(line: Line, name: str) -> Any:
    return line.texts.get(name, line.logged.values.get(name))


def _is_key(name: str, first: Line, second: Line) -> bool:
    """Return whether a text may tell runs apart: not a time, a place or a process of one."""
    if _OF_A_PART.fullmatch(usual_name(name)):
        return False
    texts = [line.texts[name] for line in (first, second) if name in line.texts]
    return not all(_DATE.fullmatch(text) for text in texts)


def _parting(lines: Sequence[Line], names: Sequence[str]) -> tuple[str, ...]:
    """Return the first column, or else all, with which no two lines collide; empty for none."""
    some = lines[:_MOST_LINES]
    ranked = sorted(names, key=lambda name: usual_name(name) not in _USUAL)
    for name in ranked:
        if _first_conflict(some, by=(name,)) is None:
            return (name,)
    if len(ranked) > 1 and _first_conflict(some, by=ranked[:_PROPOSED]) is None:
        return tuple(ranked[:_PROPOSED])
    return ()


def _numbers_that_repeat(lines: Sequence[Line]) -> list[str]:
    """Return columns of numbers with few values, each on many lines, fewest values first."""
    values: dict[str, set[float]] = {}
    counts: dict[str, int] = {}
    for line in lines[:_MOST_LINES]:
        for name, value in line.logged.values.items():
            values.setdefault(name, set()).add(value)
            counts[name] = counts.get(name, 0) + 1
    is_one_step = len({line.logged.step for line in lines}) == 1
    found = []
    for name, distinct in values.items():
        is_usual = usual_name(name) in _USUAL
        is_whole = all(value == int(value) for value in distinct)
        repeats = len(distinct) ** 2 <= counts[name] or (is_one_step and is_whole)
        is_excluded = _OF_A_PART.fullmatch(name) or _COUNTER.fullmatch(name)
        if len(distinct) > 1 and (is_usual or repeats) and not is_excluded:
            found.append((not is_usual, len(distinct), name))
    return [name for _, _, name in sorted(found)]
