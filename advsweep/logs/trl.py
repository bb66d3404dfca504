"""Runs of TRL's GRPOTrainer: the trainer's state, its arguments, and completions.

    advsweep import trl output_dir

`trainer_state.json` of transformers' Trainer is written with each checkpoint; the last has the
whole history. With `log_completions` TRL (1.16) also writes the rewards and advantages of each
logged step.

The arguments lie beside each model as a pickle, `training_args.bin`. A pickle is a program: here
its opcodes are read as text, nothing in it is imported or called, and what is not plain data
becomes None.
"""

from __future__ import annotations

import functools
import io
import json
import math
import operator
import os
import pickletools
import re
import zipfile
import zlib
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar, NamedTuple

from advsweep.errors import ConfigError, nearest
from advsweep.local_files import open_regular
from advsweep.logs.base import ImportedRun, ImportOptions, Reader, unreadable, whole_step
from advsweep.logs.names import LoggedStep, assign, estimator_node, merged
from advsweep.logs.rollout_metrics import (
    DumpMetrics,
    estimator_of,
    metrics_of_dump,
    missing_steps,
    success_reward,
)
from advsweep.logs.rollouts import REPEATED, RolloutNotes, RolloutStep, read_rollouts, sum_of
from advsweep.printable import printable_line
from advsweep.yaml_files import read_yaml

FILE = "trainer_state.json"
CHECKPOINT = re.compile(r"checkpoint-(\d{1,12})")

_HISTORY = re.compile(r'"log_history"\s*:\s*\[')
_PROGRESS = (
    *("best_model_checkpoint", "epoch", "global_step", "best_global_step", "best_metric"),
    "total_flos",
)
"""Entries of a state that say how far a training is, or where its files are."""

_MOST_BYTES = 2**20
_TEXTS = ("training_args.json", "training_args.yaml")
_PICKLE = "training_args.bin"

_EMPTY = {"EMPTY_DICT": dict, "EMPTY_LIST": list, "EMPTY_TUPLE": tuple}
_CONSTANTS = {"NEWTRUE": True, "NEWFALSE": False, "NONE": None}
_LITERALS = frozenset(
    {"BINUNICODE", "SHORT_BINUNICODE", "BININT", "BININT1", "BININT2", "LONG1", "BINFLOAT"}
)
_ADDING = {"SETITEMS": 0, "SETITEM": 2, "APPENDS": 0, "APPEND": 1}
_DAMAGED = (
    *(OSError, EOFError, ValueError, LookupError, TypeError, RuntimeError),
    *(zipfile.BadZipFile, zlib.error),
)
_LARGEST = 2**30

_DEPTH = 6
_TABLE = Path(__file__).with_name("trl_settings.yaml")


class _State(NamedTuple):
    """What one file holds; of states, the greatest is the one to use."""

    is_complete: bool
    step: int
    entries: list[Any]
    config: dict[str, Any]


@dataclass(kw_only=True)
class Trl(Reader):
    """Reads output folders of GRPOTrainer, or folders of such; a state while the trainer writes.

    The path of a log is a file, or an output folder: of its own file and those of its checkpoints,
    the complete one with the greatest `global_step` counts, as each has the whole history. Times
    of change say nothing, since copying sets them.

    Settings: `reward_weights`, weights of reward functions by name (of the others: as the
    training's arguments say, or 1), and `success_at`, the reward from which a rollout counts as a
    success (1).
    """

    name: ClassVar[str] = "trl"
    table: ClassVar[str] = "trl"

    def __post_init__(self) -> None:
        super().__post_init__()
        self._seen: list[tuple[Path, int, int]] = []
        self._entries: list[Any] = []

    def runs(self, source: Path | str, options: ImportOptions) -> Iterator[ImportedRun]:
        source = Path(source)
        shown = printable_line(str(source))
        if not source.exists():
            raise ConfigError(f"{shown}: expected an output folder of TRL, there is none")
        folders = [source] if source.is_file() else list(_run_folders(source))
        if not folders:
            raise ConfigError(
                f"{shown}: expected {FILE}, checkpoint-N/{FILE} or completions/*.parquet, got "
                "none; the trainer writes its state with each checkpoint (save_steps), and "
                "completions with log_completions=True"
            )
        for folder in folders:
            place = "." if folder.is_file() else folder.relative_to(source).as_posix()
            yield _imported(self.open(folder), place, options)

    def poll(self) -> Iterator[LoggedStep]:
        files = [self.path] if self.path.exists() else []
        if self.path.is_dir():
            # The folder's own is written at the end of a training, with what was logged after
            # the last checkpoint.
            own = [self.path / FILE] if (self.path / FILE).is_file() else []
            files = own + sorted(self.path.glob(f"checkpoint-*/{FILE}"), key=_number, reverse=True)
        try:
            marks = [(file, (s := file.stat()).st_mtime_ns, s.st_size) for file in files]
        except FileNotFoundError:  # A checkpoint that is being deleted.
            return
        if marks == self._seen:
            return
        self._seen = marks
        states: list[tuple[_State, Path]] = []
        for file in files:
            if (state := self._state(file)) is not None:
                states.append((state, file))
                # Checkpoints come newest first.
                if state.is_complete and file.parent != self.path:
                    break
        if not states:
            return
        best, _ = max(states, key=lambda pair: (*pair[0][:2], len(pair[0].entries)))
        for reason in [reason for reason in self.left_out if FILE in reason]:
            del self.left_out[reason]
        for state, file in states:
            last = max(state.step, _number(file))
            if not state.is_complete and (state is best or last > best.step):
                place = file.relative_to(self.path) if file != self.path else file.name
                self.left_out[f"steps after {best.step}, as {place} is cut"] = 1
        self._config = best.config
        known = len(self._entries)
        # A training that resumed from an earlier checkpoint logs later steps again.
        is_longer = best.entries[:known] == self._entries
        new = best.entries[known:] if is_longer else best.entries
        self._entries = best.entries
        for entry in new:
            step = whole_step(entry.get("step")) if isinstance(entry, dict) else None
            if step is None:
                self.left_out["entries without a step"] += 1
                continue
            items = [(k, v) for k, v in entry.items() if k != "step" and v is not None]
            yield LoggedStep(step, self._numbers(items))

    def _state(self, file: Path) -> _State | None:
        """Read one file; None if it is gone."""
        if (text := _read_whole(file)) is None:
            return None
        try:
            state = json.loads(text)
        except (ValueError, RecursionError):
            start = _HISTORY.search(text)
            entries = _entries_of(text, start.end())[0] if start else []
            return _State(False, _last_step(entries), entries, {})
        if not isinstance(state, dict) or not isinstance(state.get("log_history"), list):
            raise ConfigError(f"{file}: expected a state of a trainer with a log_history")
        config = {
            key: value
            for key, value in state.items()
            if isinstance(value, (str, int, float, bool)) and key not in _PROGRESS
        }
        entries = state["log_history"]
        step = whole_step(state.get("global_step"))
        return _State(True, _last_step(entries) if step is None else step, entries, config)


def _run_folders(source: Path) -> Iterator[Path]:
    """Yield the folders that hold a run, in a fixed order; links are not followed."""
    depth = len(source.parts)
    for place, folders, names in os.walk(source):
        here = Path(place)
        inside = [name for name in folders if CHECKPOINT.fullmatch(name)]
        has_state = FILE in names or any((here / name / FILE).is_file() for name in inside)
        if has_state or _has_completions(here):
            yield here
        folders[:] = sorted(
            name
            for name in folders
            if name not in inside
            and name != "completions"
            and not name.startswith(".")
            and len(here.parts) - depth < _DEPTH
        )


def _has_completions(folder: Path) -> bool:
    return any(folder.glob("completions/completions_*.parquet")) or any(
        folder.glob("completions_*.parquet")
    )


def _imported(log: Trl, source: str, options: ImportOptions) -> ImportedRun:
    folder, logged = log.path, list(log.steps())
    home = folder.resolve() if folder.is_dir() else folder.resolve().parent
    arguments = read_arguments(home)
    given = options.settings_of(source)
    run = ImportedRun(
        source=source,
        config=_settings({**arguments, **log.config}),
        steps=[],
        left_out=Counter(log.left_out),
    )
    last = max((step for step, _ in logged), default=0)
    every, steps = run.config.get("logging_steps"), run.config.get("steps")
    if not logged:
        run.notes.append(f"there is no {FILE}: metrics are those of the completions")
    elif isinstance(every, int) and isinstance(steps, int) and last + every <= steps:
        run.notes.append(f"the log ends at step {last:,} of {steps:,}")
    dump, hidden = DumpMetrics(), frozenset[int]()
    if folder.is_dir() and _has_completions(folder):
        dump, hidden = _read_completions(folder, run, arguments, given, logged)
    elif (named := _named(given)) is not None and named == run.config.get("loss_type"):
        # A loss is no estimator: the advantages follow from how the rewards are scaled.
        run.estimator = _table()["scale_rewards"].get(str(run.config.get("scale_rewards")))
    if run.estimator is not None and (named := _named(given)) != run.estimator["name"]:
        shown = run.estimator["name"]
        run.notes.append(f"{named} has the advantages of {shown}, whose name it gets")
        if named != run.config.get("loss_type"):
            run.config["named"] = named
    for key, value in (("prompts_per_step", dump.prompts), ("group_size", dump.group_size)):
        if value is not None:
            run.config.setdefault(key, value)
    if not arguments and "seed" not in given and not options.in_name(source):
        above = home.parent if CHECKPOINT.fullmatch(home.name) else home
        run.config["place"] = above.name if source == "." else source
        run.notes.append(
            "no arguments of the training can be read (training_args.bin): each folder is a row; "
            "--name-pattern '{estimator}-s{seed}' or --rows estimator say which are replicates"
        )
    run.steps = _steps(logged, dump, hidden, options)
    return run


def _read_completions(
    folder: Path,
    run: ImportedRun,
    arguments: Mapping[str, Any],
    given: Mapping[str, Any],
    logged: Sequence[LoggedStep],
) -> tuple[DumpMetrics, frozenset[int]]:
    """Return the metrics of the rollouts that were trained on, and the steps that lost theirs.

    An evaluation writes its completions over those of the training at the same step.
    """
    assert isinstance(run.left_out, Counter)
    reading = RolloutNotes(left_out=run.left_out)
    weights: dict[str, float] = {}

    def weigh(names: Sequence[str]) -> Mapping[str, float]:
        found = _weights(names, arguments, given)
        weights.update(found)
        return found

    size = given.get("group_size", run.config.get("group_size"))
    size = size if isinstance(size, int) else None
    steps = list(read_rollouts(folder, "trl", weigh=weigh, size=size, notes=reading))
    evaluated = {
        step for step, values in logged if any(name.startswith("eval_") for name in values)
    }
    rollouts = [step for step in steps if step.step not in evaluated]
    hidden = frozenset(step.step for step in steps) & evaluated
    if hidden:
        run.left_out["steps whose completions are those of an evaluation"] += len(hidden)
    run.notes += reading.remarks
    if REPEATED not in run.left_out:
        run.notes += missing_steps(
            [step for step, values in logged if "reward" in values], [s.step for s in steps]
        )
    if any(weight != 1 for weight in weights.values()):
        run.config["reward_weights"] = weights
    # The estimator whose advantages are the logged ones, if there is exactly one.
    fitting = [node for node in _table()["estimators"] if estimator_of(node, rollouts)]
    if len(fitting) == 1:
        run.config["estimator"] = dict(fitting[0])
    compute = functools.partial(
        metrics_of_dump,
        rollouts,
        success_at=success_reward(given),
        counts_rollouts=_logs_every_step(run.config, rollouts, hidden, run.left_out),
    )
    config = merged(run.config, given)
    dump = compute(config)
    if contradiction := _contradiction(logged, dump, weights, run.config):
        run.notes.append(contradiction)
        dump.steps = [
            LoggedStep(step, {k: v for k, v in own.items() if k == "cost/rollouts"})
            for step, own in dump.steps
        ]
        return dump, hidden
    if len(fitting) == 1 and _named(given) is None:
        run.notes.append("the estimator was recognised by the logged advantages")
    elif len(fitting) == 1 and dump.contradicts and _named(given) != fitting[0]["name"]:
        run.estimator = run.config["estimator"]
        dump = compute({**config, "estimator": run.estimator})
    run.notes += dump.notes + _other_groups(logged, dump, run.config)
    return dump, hidden


def _named(given: Mapping[str, Any]) -> str | None:
    """Return the estimator that the user names."""
    return estimator_node(given["estimator"])["name"] if "estimator" in given else None


@functools.cache
def _table() -> dict[str, Any]:
    table: dict[str, Any] = read_yaml(_TABLE)
    return table


def _settings(theirs: Mapping[str, Any]) -> dict[str, Any]:
    table = _table()
    kept = {key: theirs.get(key) for key in table["kept"]}
    config = {key: v for key, v in kept.items() if isinstance(v, (str, int, float))}
    for ours, key in table["keys"].items():
        value = theirs.get(key)
        if isinstance(value, (int, float)) and not isinstance(value, bool) and value >= 0:
            assign(config, ours, value)
    return config


def _weights(
    names: Sequence[str], arguments: Mapping[str, Any], given: Mapping[str, Any]
) -> dict[str, float]:
    """Return the weight of each reward function: as given, as an argument of the training, or 1."""
    named = given.get("reward_weights", {})
    if not isinstance(named, Mapping) or not all(map(_is_number, named.values())):
        raise ConfigError(
            "reward_weights: expected numbers by the names of reward functions, such as "
            f"--set reward_weights.accuracy_reward=1; got {str(named)[:100]!r}"
        )
    for name in named:
        if name not in names:
            raise ConfigError(
                f"reward_weights: there is no reward function '{name}'; {nearest(name, names)}"
            )
    weights = dict.fromkeys(names, 1.0)
    listed = arguments.get("reward_weights")
    if isinstance(listed, list) and len(listed) == len(names) and all(map(_is_number, listed)):
        weights = dict(zip(names, map(float, listed), strict=True))
    return weights | {name: float(weight) for name, weight in named.items()}


def _is_number(value: Any) -> bool:
    return isinstance(value, (int, float)) and not isinstance(value, bool)


def _logs_every_step(
    config: Mapping[str, Any],
    rollouts: Sequence[RolloutStep],
    hidden: frozenset[int],
    left_out: Mapping[str, int],
) -> bool:
    """Whether the rollouts of every generation can be counted."""
    if hidden and left_out.get(REPEATED):
        return False  # Rollouts serve several steps, and those of some generations are lost.
    if "logging_steps" in config:
        return bool(config["logging_steps"] == 1)
    numbers = sorted([step.step for step in rollouts] + list(hidden))
    return numbers == list(range(1, len(numbers) + 1))


def _contradiction(
    logged: Sequence[LoggedStep],
    dump: DumpMetrics,
    weights: Mapping[str, float],
    config: Mapping[str, Any],
) -> str:
    """Return a sentence if logged rewards are not the weighted sums of the reward functions."""
    own = {step: values.get("reward/mean", math.nan) for step, values in dump.steps}
    # Over several steps the means of the functions are logged, and completions of the last alone.
    is_mean = config.get("logging_steps", 1) != 1
    for step, values in logged:
        parts = [values.get(f"rewards/{name}/mean", math.nan) for name in weights]
        ours = math.fsum(map(operator.mul, parts, weights.values()))
        ours = ours if is_mean else own.get(step, math.nan)
        total = values.get("reward", math.nan)
        if abs(ours - total) > 1e-4 * max(1, abs(total)):
            return (
                f"{sum_of(weights)} has the mean {ours:.6g} at step {step}, the trainer logged "
                f"{total:.6g}: --set reward_weights.NAME=WEIGHT gives other weights. The logged "
                "values are kept, and those of the completions left out"
            )
    return ""


def _other_groups(
    logged: Sequence[LoggedStep], dump: DumpMetrics, config: Mapping[str, Any]
) -> list[str]:
    """Return a sentence if the logged share of groups of equal rewards is another one."""
    if config.get("logging_steps", 1) != 1:
        return []
    own = {step: values for step, values in dump.steps if not values.get("reward/unscorable")}
    for step, values in logged:
        ours = own.get(step, {}).get("collapse/acr", math.nan)
        theirs = values.get("frac_reward_zero_std", math.nan)
        if abs(ours - theirs) > 1e-6:
            return [
                f"collapse/acr of the completions is {ours:.6g} at step {step}, the trainer logged "
                f"{theirs:.6g}: as with scale_rewards=batch, or with a prompt that comes again in "
                "a step, whose groups --set group_size=N tells apart"
            ]
    return []


def _steps(
    logged: Sequence[LoggedStep],
    dump: DumpMetrics,
    hidden: frozenset[int],
    options: ImportOptions,
) -> Iterator[LoggedStep]:
    """Yield what is logged, then what the completions say, which counts where both say it.

    Args:
        hidden: steps whose rollouts are lost; they were as many as those of the others.
    """
    if dump.prompts and dump.group_size and any("cost/rollouts" in v for _, v in dump.steps):
        dump.rollouts.update(dict.fromkeys(hidden, dump.prompts * dump.group_size))
        dump.steps += [LoggedStep(step, {"cost/rollouts": 1.0}) for step in sorted(hidden)]
    found = {step: dict(values) for step, values in dump.steps}
    for step, values in logged:
        own = found.get(step, {})
        named = options.names.apply(values)
        length = values.get("completions/mean_length")
        if length is not None and "cost/rollouts" in own:
            own["cost/tokens"] = length * dump.rollouts[step]
        yield LoggedStep(step, {name: v for name, v in named.items() if name not in own})
    yield from (LoggedStep(step, values) for step, values in found.items())


def _last_step(entries: list[Any]) -> int:
    steps = (whole_step(entry.get("step")) for entry in entries if isinstance(entry, dict))
    return max((step for step in steps if step is not None), default=0)


def _number(file: Path) -> int:
    """Return the step in the name of a file's folder; 0 unless it is a checkpoint."""
    match = CHECKPOINT.fullmatch(file.parent.name)
    return int(match[1]) if match else 0


def read_arguments(folder: Path) -> dict[str, Any]:
    """Return the arguments in an output folder or its newest checkpoint; empty if unreadable."""
    newest = sorted(folder.glob("checkpoint-*"), key=lambda f: _number(f / FILE), reverse=True)
    for place in (folder, *newest):
        for file in (place / name for name in (*_TEXTS, _PICKLE)):
            try:
                if file.name != _PICKLE:
                    found = read_yaml(file)
                else:
                    with open_regular(file.resolve()) as stream:
                        archive = zipfile.ZipFile(io.BytesIO(stream.read(_MOST_BYTES)))
                    (data,) = (n for n in archive.namelist() if n.endswith("/data.pkl"))
                    found = plain_pickle(archive.open(data).read(_MOST_BYTES))
            except _DAMAGED:
                continue
            if isinstance(found, dict) and found:
                return found
    return {}


def plain_pickle(data: bytes) -> Any:
    """Return the plain data in a pickle; the attributes of an object stand for it.

    Raises:
        ValueError, LookupError, TypeError: it is damaged, or no pickle.
    """
    stack: list[Any] = []
    memo: dict[Any, Any] = {}
    marks: list[int] = []

    for code, value, _ in pickletools.genops(data):
        name = code.name
        if name in _LITERALS:
            stack.append(value)
        elif name in _CONSTANTS:
            stack.append(_CONSTANTS[name])
        elif name in _EMPTY:
            stack.append(_EMPTY[name]())
        elif name == "MARK":
            marks.append(len(stack))
        elif name in ("BINPUT", "LONG_BINPUT", "MEMOIZE"):
            memo[len(memo) if value is None else value] = stack[-1]
        elif name in ("BINGET", "LONG_BINGET"):
            stack.append(memo[value])
        elif name in _ADDING:
            start = marks.pop() if name.endswith("S") else len(stack) - _ADDING[name]
            items, target = stack[start:], stack[start - 1]
            del stack[start:]
            if isinstance(target, dict):
                target |= zip(items[::2], items[1::2], strict=True)
            elif isinstance(target, list):
                target += items
        elif name == "BUILD":
            del stack[-2]
        elif name == "STOP":
            return stack[-1]
        else:
            before = [kind.name for kind in code.stack_before]
            if "mark" in before:
                del stack[marks.pop() :]
                before = before[: before.index("mark")]
            del stack[len(stack) - len(before) :]
            stack += [None] * len(code.stack_after)
    return None


def _entries_of(text: str, place: int) -> tuple[list[Any], int]:
    """Return the complete entries of an array from a place within it, and the place after them."""
    entries: list[Any] = []
    decoder = json.JSONDecoder()
    while True:
        while place < len(text) and text[place] in " \t\r\n,":
            place += 1
        try:
            entry, place = decoder.raw_decode(text, place)
        except (ValueError, RecursionError):
            return entries, place
        entries.append(entry)


def _read_whole(path: Path) -> str | None:
    """Return a text of at most 1 GiB; None if there is no such file.

    Raises:
        ConfigError: it cannot be read, or is larger.
    """
    try:
        with open_regular(path.resolve()) as stream:
            data = stream.read(_LARGEST + 1)
    except FileNotFoundError:
        return None
    except OSError as error:
        raise unreadable(path, error) from error
    if len(data) > _LARGEST:
        raise ConfigError(f"{path}: expected at most 1 GiB, got more")
    return data.decode("utf-8", "replace")
