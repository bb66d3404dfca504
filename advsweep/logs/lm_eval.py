"""Samples of lm-evaluation-harness: n and c of every problem, so pass@k for any k.

    advsweep import lm-eval results/                # written with --log_samples

A file `samples_TASK_DATE.jsonl` (lm-eval 0.4) has a line for each problem and filter: the
responses, what the filter made of them, and the problem's value of each metric. n and c follow
from that value where it is one of

- a list of 0 and 1, one for each response;
- `pass@1`, the share of the n responses that are correct;
- a share of the n responses (their mean), seen by values between 0 and 1 that are multiples of 1/n;
- 0 or 1: the filter scores one response, n = 1.

`pass@k` with k above 1 does not say how many responses are correct.

A majority vote is no sample of the model and is left out where another filter exists.

Releases before 0.4.4 name neither the filter nor the metrics of a line: metrics are then the
numbers that are not of the problem, and filters are numbered. Results without samples
(`results_DATE.json` alone) are metrics at the end of the training, without n and c.
"""

from __future__ import annotations

import json
import math
import re
from collections import Counter
from collections.abc import Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar, NamedTuple

from advsweep.bounds import is_bounded
from advsweep.errors import ConfigError, NotFoundError, nearest
from advsweep.local_files import open_regular
from advsweep.logs.base import (
    LAST_STEP,
    MAX_NAME,
    ImportedRun,
    ImportOptions,
    ProblemCount,
    Reader,
    existing,
    is_number,
)
from advsweep.logs.json_lines import json_objects
from advsweep.logs.names import LoggedStep, value_at
from advsweep.printable import printable_line, redacted

_SAMPLES = re.compile(r"samples_(?P<task>.+)_(?P<date>\d{4}-\d\d-\d\dT\d\d-\d\d-\d\d\.\d+)\.jsonl")
_CHECKPOINT = re.compile(
    r"(?P<run>.*?)[/_]*(?:checkpoint|global_step|global-step|step)[-_]?(?P<step>\d{1,10})"
    r"(?:/(?:actor|huggingface|hf|policy|model))*/?"
)
_VOTE = re.compile(r"maj|vote|consensus", re.IGNORECASE)
# What a line has besides its metrics.
_OF_PROBLEM = frozenset(
    {
        "doc_id",
        "doc",
        "target",
        "arguments",
        "resps",
        "filtered_resps",
        "filter",
        "metrics",
        "doc_hash",
        "prompt_hash",
        "target_hash",
    }
)

# Metrics that say whether an answer is right, before others whose values are 0 and 1.
_USUAL = ("exact_match", "acc", "math_verify", "prompt_level_strict_acc")

_MOST_RESULTS = 256 * 2**20
_MOST_LINE = 16 * 2**20
_MOST_RESPONSES = 10**6
# Settings that are kept.
_KEPT = ("model", "model_args", "gen_kwargs", "num_fewshot", "limit", "system_instruction")


# By filter, metric and problem: the value, and the number of responses.
_Values = dict[str, dict[str, dict[str, tuple[Any, int]]]]

# By problem n and c.
_Counts = dict[str, tuple[int, int]]


class _Model(NamedTuple):
    """The results of one model, which may be a checkpoint of a run.

    Attributes:
        run, step: the name of the run, and the training steps of the model; None for a model in
            no folder of a checkpoint.
        above: the folder of the results, or that above it if lm-eval named it after the model.
        tasks: the newest samples of each task.
        results: the results beside them; empty without readable ones.
    """

    run: str
    step: int | None
    above: Path
    tasks: Mapping[str, Path]
    results: Mapping[str, Any]


@dataclass(kw_only=True)
class LmEval(Reader):
    """Reads a folder of results, or one file of samples.

    Settings `filter` and `metric` choose what decides whether a response is correct. A model in a
    folder `checkpoint-N` or `global_step_N` is the run in the folder above, evaluated after N
    steps. Another model is the end of a training: of `steps` steps, where that is given, and of 0
    if it is untrained.
    """

    name: ClassVar[str] = "lm-eval"
    table: ClassVar[str] = "jsonl"

    def runs(self, source: Path | str, options: ImportOptions) -> Iterator[ImportedRun]:
        source = existing(source)
        by_run: dict[str, dict[Path, list[_Model]]] = {}
        for model in _models_of(source):
            by_run.setdefault(model.run, {}).setdefault(model.above, []).append(model)
        for name, by_place in by_run.items():
            models = [model for same in by_place.values() for model in same]
            kinds = [(model.step, task) for model in models for task in model.tasks]
            # Checkpoints of a run may lie in different folders, but each is evaluated once.
            is_one = len(set(kinds)) == len(kinds)
            for above, own in ({models[0].above: models} if is_one else by_place).items():
                inside = above.is_relative_to(source)
                place = above.relative_to(source) if inside else Path(above.resolve().name)
                path = (place / name).as_posix()
                yield _imported(name if is_one else path, path, own, options)


def _models_of(source: Path) -> list[_Model]:
    """Return the models whose samples are there, in the order of their folders."""
    newest = _newest_samples([source] if source.is_file() else sorted(source.rglob("*.jsonl")))
    folders = dict.fromkeys(newest)
    if source.is_dir():
        # Results whose samples were not logged.
        folders |= dict.fromkeys(file.parent for file in sorted(source.rglob("results*.json")))
    models = []
    for folder in folders:
        samples = newest.get(folder, {})
        results = _results_beside(folder, {sample.date for sample in samples.values()})
        if not samples and not results:
            continue
        model_name = results.get("model_name")
        name_of_folder = folder.name.replace("__", "/")
        if isinstance(model_name, str) and model_name:
            run, step = _split(redacted(model_name))
        else:
            run, step = _split(name_of_folder)
        above = folder.parent if _split(name_of_folder) == (run, step) else folder
        tasks = {task: sample.path for task, sample in samples.items()}
        models.append(_Model(run, step, above, tasks, results))
    if not models:
        raise ConfigError(
            f"{printable_line(str(source))}: expected files samples_TASK_DATE.jsonl, got none; "
            "run lm_eval with --log_samples and --output_path"
        )
    return models


class _Samples(NamedTuple):
    """A file of samples; of one task, the newest counts."""

    date: str
    path: Path


def _newest_samples(files: Iterable[Path]) -> dict[Path, dict[str, _Samples]]:
    """Return the newest samples of each task, by folder."""
    newest: dict[Path, dict[str, _Samples]] = {}
    for path in files:
        match = _SAMPLES.fullmatch(path.name)
        if match is not None:
            task = match["task"]
            samples = _Samples(match["date"], path)
        elif _has_samples(path):
            # Releases before 0.4.3 write MODEL_TASK.jsonl.
            task = path.stem
            samples = _Samples("", path)
        else:
            continue
        of_folder = newest.setdefault(path.parent, {})
        of_folder[task] = max(samples, of_folder.get(task, samples))
    return newest


def _results_beside(folder: Path, dates: Collection[str]) -> Mapping[str, Any]:
    """Return the results in a folder, rather those of its samples; empty without readable ones.

    Args:
        dates: those of its samples.
    """
    files: list[Path] = []
    for date in sorted(filter(None, dates), reverse=True):
        files += sorted(folder.glob(f"*_{date}.json"))
    files += sorted(folder.glob("results*.json"), reverse=True)
    return next(filter(None, map(_results, files)), {})


def _has_samples(path: Path) -> bool:
    """Return whether a file is one of samples, by its first line."""
    try:
        with open_regular(path.resolve()) as stream:
            row = json.loads(stream.readline(_MOST_LINE))
    except (OSError, ValueError, RecursionError):
        return False
    return isinstance(row, dict) and {"doc_id", "resps"} <= row.keys()


def _read_values(path: Path, left_out: Counter[str]) -> _Values:
    """Return the values of one task."""
    values: _Values = {}
    rows_of: Counter[str] = Counter()
    for row in json_objects(path, left_out):
        if "doc_id" not in row:
            left_out["lines without a problem (doc_id)"] += 1
            continue
        problem = _problem_of(row)
        rows_of[problem] += 1
        unnamed = "none" if rows_of[problem] == 1 else f"unnamed-{rows_of[problem]}"
        by_metric = values.setdefault(str(row.get("filter", unnamed)), {})
        for name in _metrics_in(row):
            if _is_value(row[name]):
                entry = (row[name], _responses_of(row))
                by_metric.setdefault(name, {})[printable_line(problem)] = entry
            else:
                left_out[f"values of {printable_line(name)} that are not numbers"] += 1
    return values


def _problem_of(row: Mapping[str, Any]) -> str:
    """Return the name of a problem: its number, with a part of its hash."""
    number = str(row["doc_id"])[:100]
    digest = row.get("doc_hash")
    return f"{number}-{digest[:8]}" if isinstance(digest, str) else number


def _responses_of(row: Mapping[str, Any]) -> int:
    """Return the number of responses to a problem."""
    responses = row.get("resps")
    first = responses[0] if isinstance(responses, list) and len(responses) == 1 else None
    return len(first) if isinstance(first, list) else 1


def _metrics_in(row: Mapping[str, Any]) -> list[str]:
    """Return the metrics that a line has: those that it names, or else all other fields."""
    metrics = row.get("metrics")
    if not isinstance(metrics, list):
        return [name for name in row if name not in _OF_PROBLEM]
    return [name for name in metrics if isinstance(name, str) and name in row]


def _is_value(value: Any) -> bool:
    """Return whether a value is a finite number, or one for each response."""
    is_finite = isinstance(value, (int, float)) and math.isfinite(value)
    return is_finite or isinstance(value, list)


def _results(path: Path) -> dict[str, Any]:
    """Return the results of one file; empty if it is damaged or something else."""
    try:
        with open_regular(path.resolve()) as stream:
            content = json.loads(stream.read(_MOST_RESULTS))
    except (OSError, ValueError, RecursionError):
        return {}
    is_known = isinstance(content, dict) and isinstance(content.get("config"), dict)
    return content if is_known else {}


def _split(model: str) -> tuple[str, int | None]:
    """Return the name of the run that a checkpoint is of, and its step; None for a model.

    >>> _split("runs/grpo-s0/checkpoint-500"), _split("Qwen/Qwen2.5-0.5B")
    (('runs/grpo-s0', 500), ('Qwen/Qwen2.5-0.5B', None))
    """
    match = _CHECKPOINT.fullmatch(model)
    if match is None or not match["run"] or int(match["step"]) > LAST_STEP:
        return printable_line(model)[:500], None
    return printable_line(match["run"])[:500], int(match["step"])


def _imported(source: str, path: str, models: list[_Model], options: ImportOptions) -> ImportedRun:
    run = ImportedRun(source=source, path=path, config={}, steps=[], left_out=Counter())
    settings = options.settings_of(path)
    logged: list[LoggedStep] = []
    last, remark = _last_step(models, settings)
    for model in models:
        step = last if model.step is None else model.step
        if not model.tasks:
            metrics = _metrics_of(model.results)
            logged.append(options.names.rename_step(LoggedStep(step, metrics)))
            run.notes.append(
                "there are no samples (--log_samples): the results are metrics, and pass@k has no "
                "n and c"
            )
        for task in model.tasks:
            _add_task(run, model, task, step, settings)
    if remark:
        run.notes.append(remark)
    # Checkpoints of a run usually have the same.
    run.notes = list(dict.fromkeys(run.notes))
    run.steps = logged
    run.config["model"] = {"path": models[0].run}
    kept = _kept_settings(models[0].results.get("config", {}))
    if kept:
        run.config["lm_eval"] = kept
    return run


def _add_task(
    run: ImportedRun, model: _Model, name: str, step: int, settings: Mapping[str, Any]
) -> None:
    """Add the results of a task to a run, with notes, or count a task without any."""
    assert isinstance(run.left_out, Counter)
    task = printable_line(name)[:200]
    chosen = _choose(_read_values(model.tasks[name], run.left_out), task, settings)
    if chosen is None:
        run.left_out["tasks without a metric that says what is correct"] += 1
        return
    counts, note = chosen
    run.notes.append(f"{task}: {note}")
    sizes = model.results.get("n-samples")
    size = value_at(sizes.get(name) if isinstance(sizes, dict) else None, "effective")
    if isinstance(size, int) and len(counts) < size:
        which = f"{task} at step {step}" if model.step else task
        run.notes.append(f"{which}: {len(counts):,} of {size:,} problems are in the samples")
    for problem, (n, correct) in counts.items():
        run.evaluations.append(ProblemCount(step, problem, n, correct, task))


def _kept_settings(config: Mapping[str, Any]) -> dict[str, Any]:
    """Return the settings of an evaluation that are kept.

    The path of the model has the step of a checkpoint, and is the model's name already.
    """
    kept = {key: config[key] for key in _KEPT if config.get(key) not in (None, "", {})}
    arguments = kept.get("model_args")
    if isinstance(arguments, dict):
        kept["model_args"] = {k: v for k, v in arguments.items() if k not in ("pretrained", "path")}
    elif isinstance(arguments, str):
        parts = [part for part in arguments.split(",") if not part.startswith("pretrained=")]
        kept["model_args"] = redacted(",".join(parts))
    return kept


def _last_step(models: list[_Model], settings: Mapping[str, Any]) -> tuple[int, str]:
    """Return the step of a model in no folder of a checkpoint, and what to say about it."""
    if all(model.step is not None for model in models):
        return 0, ""
    steps = settings.get("steps")
    if isinstance(steps, int) and not isinstance(steps, bool) and 0 <= steps <= LAST_STEP:
        return steps, ""
    known = max((model.step for model in models if model.step is not None), default=0)
    return known + 1, (
        "no checkpoint is in the path of a model: it is taken for the end of a training, and its "
        "step is a placeholder; --set steps=N gives it (0: it is untrained)"
    )


def _metrics_of(results: Mapping[str, Any]) -> dict[str, float]:
    """Return the metrics of results by TASK/METRIC, and the name of a filter where there is one."""
    values = {}
    for task, key, value in _entries_of(results.get("results")):
        metric, _, filter_name = key.partition(",")
        if not is_number(value) or metric.endswith("_stderr") or not is_bounded(value):
            continue
        parts = [task, metric]
        if filter_name not in ("", "none"):
            parts.append(filter_name)
        values["/".join(map(printable_line, parts))[:MAX_NAME]] = float(value)
    return values


def _entries_of(by_task: Any) -> Iterator[tuple[str, str, Any]]:
    """Yield each task, key and value of results by task; nothing of another form."""
    if not isinstance(by_task, dict):
        return
    for task, metrics in by_task.items():
        if isinstance(metrics, dict):
            for key, value in metrics.items():
                yield str(task), str(key), value


class _Choice(NamedTuple):
    """What may say how many responses are correct; the greatest is taken.

    Attributes:
        is_sample: whether responses are samples, and no majority vote.
        responses: the most responses to a problem.
        usualness: greater for a metric that is rather taken.
    """

    is_sample: bool
    responses: int
    usualness: int
    filter_name: str
    metric: str
    counts: _Counts
    how: str

    @property
    def rank(self) -> tuple[bool, int, int]:
        return self.is_sample, self.responses, self.usualness


def _choose(samples: _Values, task: str, settings: Mapping[str, Any]) -> tuple[_Counts, str] | None:
    """Return the counts of one filter and metric of a task, and what they are.

    Of several: the one with most responses, then that of a usual metric, then the first; a
    majority vote last.
    """
    metrics = sorted({metric for by_metric in samples.values() for metric in by_metric})
    for what, names in (("filter", list(samples)), ("metric", metrics)):
        if what in settings and settings[what] not in names:
            name = str(settings[what])[:100]
            raise NotFoundError(f"{what}: {task} has none called {name!r}; {nearest(name, names)}")
    choices = [
        choice
        for filter_name, by_metric in samples.items()
        for choice in _choices(filter_name, by_metric, settings)
    ]
    if not choices:
        return None
    best = max(choices, key=lambda choice: choice.rank)
    note = f"{printable_line(best.metric)} of filter {printable_line(best.filter_name)}, {best.how}"
    if not best.is_sample:
        note += ", a majority vote"
    others = [printable_line(name) for name in samples if name != best.filter_name]
    if others:
        note += f"; other filters: {', '.join(others[:8])} (--set filter=NAME)"
    return best.counts, note


def _choices(
    filter_name: str,
    by_metric: Mapping[str, Mapping[str, tuple[Any, int]]],
    settings: Mapping[str, Any],
) -> Iterator[_Choice]:
    """Yield the metrics of a filter that say what is correct, as far as settings allow them."""
    if settings.get("filter", filter_name) != filter_name:
        return
    for metric, values in by_metric.items():
        if settings.get("metric", metric) != metric:
            continue
        counted = _counts(metric, values)
        if counted is None:
            continue
        counts, how = counted
        usual = _USUAL.index(metric) if metric in _USUAL else len(_USUAL)
        yield _Choice(
            is_sample=_VOTE.search(filter_name) is None,
            responses=max(n for n, _ in counts.values()),
            usualness=-usual,
            filter_name=filter_name,
            metric=metric,
            counts=counts,
            how=how,
        )


def _counts(metric: str, values: Mapping[str, tuple[Any, int]]) -> tuple[_Counts, str] | None:
    """Return n and c of each problem; None for a metric that does not say what is correct."""
    is_pass = metric.startswith(("pass@", "pass_at_"))
    if is_pass and metric not in ("pass@1", "pass_at_1"):
        return None
    is_listed = all(isinstance(value, list) for value, _ in values.values())
    is_single = not is_pass and all(_is_verdict(value) for value, _ in values.values())
    counts: _Counts = {}
    for problem, (value, responses) in values.items():
        count = (1, int(value)) if is_single else _count(value, responses, is_listed=is_listed)
        if count is None:
            return None
        counts[problem] = count
    if is_listed:
        return counts, "one value for each response"
    if is_single:
        most = max(responses for _, responses in values.values())
        return counts, f"one of {most} responses" if most > 1 else "one response"
    return counts, "the share of the responses"


def _count(value: Any, responses: int, *, is_listed: bool) -> tuple[int, int] | None:
    """Return n and c of a problem; None for a value that is no number of correct responses."""
    if is_listed and value and all(map(_is_verdict, value)):
        return len(value), sum(map(int, value))
    if isinstance(value, list) or not 0 <= value <= 1 or responses > _MOST_RESPONSES:
        return None
    correct = round(value * responses)
    # A score, and not a share of the responses.
    if abs(value * responses - correct) > 1e-6 * responses:
        return None
    return responses, correct


def _is_verdict(value: Any) -> bool:
    return isinstance(value, (bool, int, float)) and value in (0, 1)
