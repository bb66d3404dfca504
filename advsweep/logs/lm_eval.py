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
"""

from __future__ import annotations

import json
import math
import re
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar, NamedTuple

from advsweep.errors import ConfigError, NotFoundError, nearest
from advsweep.local_files import open_regular
from advsweep.logs.base import LAST_STEP, ImportedRun, ImportOptions, ProblemCount, Reader
from advsweep.logs.lines import json_objects
from advsweep.printable import printable_line, redacted

_SAMPLES = re.compile(r"samples_(?P<task>.+)_(?P<date>\d{4}-\d\d-\d\dT\d\d-\d\d-\d\d\.\d+)\.jsonl")
_CHECKPOINT = re.compile(
    r"(?P<run>.*?)[/_]*(?:checkpoint|global_step|global-step|step)[-_]?(?P<step>\d{1,10})"
    r"(?:/(?:actor|huggingface|hf|policy|model))*/?"
)
_VOTE = re.compile(r"maj|vote|consensus", re.IGNORECASE)
_USUAL = ("exact_match", "acc", "math_verify", "prompt_level_strict_acc")
"""Metrics that say whether an answer is right, before others whose values are 0 and 1."""

_MOST_RESULTS = 256 * 2**20
_MOST_RESPONSES = 10**6
_KEPT = ("model", "model_args", "gen_kwargs", "num_fewshot", "limit", "system_instruction")


class _File(NamedTuple):
    date: str
    task: str
    path: Path


_Values = dict[str, dict[str, dict[str, tuple[Any, int]]]]
"""By filter, metric and problem: the value, and the number of responses."""


class _Count(NamedTuple):
    n: int
    correct: int


@dataclass(kw_only=True)
class LmEval(Reader):
    """Reads a folder of results, or one file of samples.

    Settings `filter` and `metric` choose what decides whether a response is correct. A model in a
    folder `checkpoint-N` or `global_step_N` is the run in the folder above, evaluated after N
    steps.
    """

    name: ClassVar[str] = "lm-eval"
    table: ClassVar[str] = "jsonl"

    def runs(self, source: Path | str, options: ImportOptions) -> Iterator[ImportedRun]:
        source = Path(source)
        folders = [_Folder(folder, files) for folder, files in _folders(source).items()]
        by_run: dict[str, dict[Path, list[_Folder]]] = {}
        for folder in folders:
            by_run.setdefault(folder.run, {}).setdefault(folder.above, []).append(folder)
        for name, by_place in by_run.items():
            parts = [folder for same in by_place.values() for folder in same]
            kinds = [(folder.step, file.task) for folder in parts for file in folder.files]
            # Checkpoints of a run may lie in different folders, but each is evaluated once.
            is_one = len(set(kinds)) == len(kinds)
            for above, own in ({parts[0].above: parts} if is_one else by_place).items():
                inside = above.is_relative_to(source)
                place = above.relative_to(source) if inside else Path(above.resolve().name)
                path = (place / name).as_posix()
                yield _imported(name if is_one else path, path, own, options)


class _Folder:
    """A folder of results: one model, which may be a checkpoint of a run.

    Attributes:
        run, step: the name of the run, and the training steps of the model.
        above: the folder, or that above it if lm-eval named it after the model.
    """

    def __init__(self, path: Path, files: list[_File]) -> None:
        self.files = files
        self.results = _results(path, files)
        name = self.results.get("model_name")
        named = path.name.replace("__", "/")
        self.run, self.step = _split(redacted(name) if isinstance(name, str) and name else named)
        self.above = path.parent if _split(named) == (self.run, self.step) else path


def _folders(source: Path) -> dict[Path, list[_File]]:
    """Return the newest samples of each task, by folder."""
    shown = printable_line(str(source))
    if not source.exists():
        raise ConfigError(f"{shown}: expected results of lm-eval, there are none")
    paths = [source] if source.is_file() else sorted(source.rglob("samples_*.jsonl"))
    newest: dict[tuple[Path, str], _File] = {}
    for path in paths:
        if match := _SAMPLES.fullmatch(path.name):
            file = _File(match["date"], match["task"], path)
            known = newest.get((path.parent, file.task), file)
            newest[path.parent, file.task] = max(known, file)
    if not newest:
        raise ConfigError(
            f"{shown}: expected files samples_TASK_DATE.jsonl, got none; run lm_eval with "
            "--log_samples and --output_path"
        )
    folders: dict[Path, list[_File]] = {}
    for (folder, _), file in newest.items():
        folders.setdefault(folder, []).append(file)
    return folders


def _results(folder: Path, files: Iterable[_File]) -> dict[str, Any]:
    """Return the results beside the newest samples; empty without readable ones."""
    for date in sorted({file.date for file in files}, reverse=True):
        for path in sorted(folder.glob(f"*_{date}.json")):
            try:
                with open_regular(path.resolve()) as stream:
                    text = stream.read(_MOST_RESULTS)
                content = json.loads(text)
            except (OSError, ValueError, RecursionError):
                continue
            if isinstance(content, dict) and isinstance(content.get("config"), dict):
                return content
    return {}


def _split(model: str) -> tuple[str, int]:
    """Return the name of the run that a checkpoint is of, and its step; 0 for a model.

    >>> _split("runs/grpo-s0/checkpoint-500"), _split("Qwen/Qwen2.5-0.5B")
    (('runs/grpo-s0', 500), ('Qwen/Qwen2.5-0.5B', 0))
    """
    match = _CHECKPOINT.fullmatch(model)
    if match is None or not match["run"] or int(match["step"]) > LAST_STEP:
        return printable_line(model)[:500], 0
    return printable_line(match["run"])[:500], int(match["step"])


def _config(model: str, results: Mapping[str, Any]) -> dict[str, Any]:
    settings = results.get("config", {})
    kept = {key: settings[key] for key in _KEPT if settings.get(key) not in (None, "")}
    arguments = kept.get("model_args")
    if isinstance(arguments, dict):
        # The path has the step of a checkpoint, and is the model's name already.
        kept["model_args"] = {
            key: value for key, value in arguments.items() if key not in ("pretrained", "path")
        }
    elif isinstance(arguments, str):
        parts = (part for part in arguments.split(",") if not part.startswith(("pretrained=",)))
        kept["model_args"] = redacted(",".join(parts))
    return {"model": {"path": model}, **({"lm_eval": kept} if kept else {})}


def _imported(
    source: str, path: str, folders: list[_Folder], options: ImportOptions
) -> ImportedRun:
    left_out: Counter[str] = Counter()
    notes: list[str] = []
    evaluations: list[ProblemCount] = []
    given = options.settings_of(path)
    for folder in folders:
        sizes = folder.results.get("n-samples")
        sizes = sizes if isinstance(sizes, dict) else {}
        for file in folder.files:
            task = printable_line(file.task)[:200]
            chosen = _choose(_read(file.path, left_out), task, given)
            if chosen is None:
                left_out["tasks without a metric that says what is correct"] += 1
                continue
            counts, note = chosen
            notes.append(f"{task}: {note}")
            size = sizes.get(file.task)
            size = size.get("effective") if isinstance(size, dict) else None
            if isinstance(size, int) and len(counts) < size:
                of = f"{task} at step {folder.step}" if folder.step else task
                notes.append(f"{of}: {len(counts):,} of {size:,} problems are in the samples")
            evaluations += [
                ProblemCount(folder.step, problem, count.n, count.correct, task)
                for problem, count in counts.items()
            ]
    return ImportedRun(
        source=source,
        path=path,
        config=_config(folders[0].run, folders[0].results),
        steps=[],
        evaluations=evaluations,
        left_out=left_out,
        # Checkpoints of a run usually have the same.
        notes=list(dict.fromkeys(notes)),
    )


def _read(path: Path, left_out: Counter[str]) -> _Values:
    """Return the values of one task."""
    values: _Values = {}
    for row in json_objects(path, left_out):
        if "doc_id" not in row:
            left_out["lines without a problem (doc_id)"] += 1
            continue
        digest = row.get("doc_hash")
        problem = str(row["doc_id"])[:100]
        problem += f"-{digest[:8]}" if isinstance(digest, str) else ""
        responses = row.get("resps")
        first = responses[0] if isinstance(responses, list) and len(responses) == 1 else None
        number = len(first) if isinstance(first, list) else 1
        by_metric = values.setdefault(str(row.get("filter", "none")), {})
        metrics = row.get("metrics")
        for name in metrics if isinstance(metrics, list) else []:
            if not isinstance(name, str) or name not in row:
                continue
            value = row[name]
            if isinstance(value, list) or (
                isinstance(value, (int, float)) and math.isfinite(value)
            ):
                by_metric.setdefault(name, {})[printable_line(problem)] = value, number
            else:
                left_out[f"values of {printable_line(name)} that are not numbers"] += 1
    return values


def _choose(
    samples: _Values, task: str, given: Mapping[str, Any]
) -> tuple[dict[str, _Count], str] | None:
    """Return the counts of one filter and metric of a task, and what they are.

    Of several: the one with most responses, then that of a usual metric, then the first; a
    majority vote last.
    """
    metrics = sorted({metric for by_metric in samples.values() for metric in by_metric})
    for what, known in (("filter", list(samples)), ("metric", metrics)):
        if what in given and given[what] not in known:
            name = str(given[what])[:100]
            raise NotFoundError(f"{what}: {task} has none called {name!r}; {nearest(name, known)}")
    found = [
        (filter_name, metric, counts, how)
        for filter_name, by_metric in samples.items()
        for metric, values in by_metric.items()
        if given.get("filter", filter_name) == filter_name
        and given.get("metric", metric) == metric
        and (counted := _counts(metric, values)) is not None
        for counts, how in [counted]
    ]
    if not found:
        return None

    def rank(each: tuple[str, str, dict[str, _Count], str]) -> tuple[bool, int, int]:
        filter_name, metric, counts, _ = each
        usual = _USUAL.index(metric) if metric in _USUAL else len(_USUAL)
        most = max(count.n for count in counts.values())
        return _VOTE.search(filter_name) is None, most, -usual

    filter_name, metric, counts, how = max(found, key=rank)
    note = f"{printable_line(metric)} of filter {printable_line(filter_name)}, {how}"
    note += ", a majority vote" if _VOTE.search(filter_name) else ""
    others = [printable_line(name) for name in samples if name != filter_name]
    note += f"; other filters: {', '.join(others[:8])} (--set filter=NAME)" if others else ""
    return counts, note


def _counts(
    metric: str, values: Mapping[str, tuple[Any, int]]
) -> tuple[dict[str, _Count], str] | None:
    """Return n and c of each problem; None for a metric that does not say what is correct."""
    counts = {}
    if all(isinstance(value, list) and value for value, _ in values.values()):
        if not all(_is_verdict(item) for value, _ in values.values() for item in value):
            return None
        for problem, (value, _) in values.items():
            counts[problem] = _Count(len(value), sum(map(int, value)))
        return counts, "one value for each response"
    is_pass = metric.startswith(("pass@", "pass_at_"))
    if is_pass and metric not in ("pass@1", "pass_at_1"):
        return None
    if not is_pass and all(_is_verdict(value) for value, _ in values.values()):
        most = max(responses for _, responses in values.values())
        how = f"one of {most} responses" if most > 1 else "one response"
        return {problem: _Count(1, int(v)) for problem, (v, _) in values.items()}, how
    for problem, (value, responses) in values.items():
        if isinstance(value, list) or not 0 <= value <= 1 or responses > _MOST_RESPONSES:
            return None
        correct = round(value * responses)
        if abs(value * responses - correct) > 1e-6 * responses:
            return None  # A score, and not a share of the responses.
        counts[problem] = _Count(responses, correct)
    return counts, "the share of the responses"


def _is_verdict(value: Any) -> bool:
    return isinstance(value, (bool, int, float)) and value in (0, 1)
