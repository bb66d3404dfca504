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

import io
import json
import math
import operator
import pickletools
import re
import zipfile
import zlib
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from operator import itemgetter
from pathlib import Path
from typing import Any, ClassVar, NamedTuple

from advsweep.errors import ConfigError, nearest
from advsweep.local_files import open_regular
from advsweep.logs.base import (
    ImportedRun,
    ImportOptions,
    Reader,
    existing,
    folders_of_runs,
    unreadable,
    whole_step,
)
from advsweep.logs.console import Console, is_console
from advsweep.logs.names import LoggedStep, assign, estimator_node, merged
from advsweep.logs.rollouts import (
    REPEATED,
    RolloutNotes,
    completion_tables,
    missing_steps,
    read_rollouts,
    success_reward,
    sum_of,
)
from advsweep.names import ACR, REWARD_MEAN, ROLLOUT_COST, TOKEN_COST, UNSCORABLE
from advsweep.printable import printable_line
from advsweep.yaml_files import read_yaml

FILE = "trainer_state.json"
CHECKPOINT = re.compile(r"checkpoint-(\d{1,12})")

# Entries of a state that say how far a training is, or where its files are.
_PROGRESS = (
    *("best_model_checkpoint", "epoch", "global_step", "best_global_step", "best_metric"),
    "total_flos",
)

_CUT = "states that are cut"
_PLAIN = (str, int, float)
_LARGEST = 2**30
_MOST_BYTES = 2**20

_EMPTY = {"EMPTY_DICT": dict, "EMPTY_LIST": list, "EMPTY_TUPLE": tuple}
_CONSTANTS = {"NEWTRUE": True, "NEWFALSE": False, "NONE": None}
_LITERALS = frozenset(
    {"BINUNICODE", "SHORT_BINUNICODE", "BININT", "BININT1", "BININT2", "LONG1", "BINFLOAT"}
)
_DAMAGED = (
    *(OSError, EOFError, ValueError, LookupError, TypeError, RuntimeError),
    *(zipfile.BadZipFile, zlib.error),
)

_TABLE: dict[str, Any] = read_yaml(Path(__file__).with_name("trl_settings.yaml"))


class _State(NamedTuple):
    """What one complete file holds; of states, the greatest is the one to use."""

    step: int
    length: int
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
        source = existing(source)
        if is_console(source):
            yield from Console().runs(source, options)
            return
        folders = [source]
        if source.is_dir():
            folders = [
                folder
                for folder in folders_of_runs(source, {"completions"})
                if _states(folder) or completion_tables(folder)
            ]
        if not folders:
            raise ConfigError(
                f"{printable_line(str(source))}: expected {FILE}, checkpoint-N/{FILE} or "
                "completions/*.parquet, got none; the trainer writes its state with each "
                "checkpoint (save_steps), and completions with log_completions=True"
            )
        for folder in folders:
            yield _imported(self.open(folder), folder.relative_to(source).as_posix(), options)

    def poll(self) -> Iterator[LoggedStep]:
        files = _states(self.path)
        try:
            marks = [(file, (s := file.stat()).st_mtime_ns, s.st_size) for file in files]
        except FileNotFoundError:  # A checkpoint that is being deleted.
            return
        # Files are whole JSON documents, of which the last may have hundreds of megabytes.
        if marks == self._seen:
            return
        self._seen = marks
        # What was being written at the last call may be complete by now.
        for reason in [reason for reason in self.left_out if reason.startswith(_CUT)]:
            del self.left_out[reason]
        best = _State(0, 0, self._entries, self._config)
        for file in files:
            try:
                state = _read_state(file)
            except ConfigError:
                raise
            except (ValueError, RecursionError):
                # Cut by a copy, or not written to its end yet.
                place = file.relative_to(self.path) if file != self.path else file.name
                self.left_out[f"{_CUT} ({place})"] = 1
                continue
            if state is not None:
                best = max(best, state, key=itemgetter(0, 1))
                # Checkpoints come newest first.
                if file.parent != self.path:
                    break
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


def _states(path: Path) -> list[Path]:
    """Return a file, or the states in an output folder: its own, then the newest checkpoint's."""
    if not path.is_dir():
        return [path] if path.exists() else []
    # The folder's own is written at the end of a training, with what was logged after the last
    # checkpoint.
    own = [path / FILE] if (path / FILE).is_file() else []
    return own + sorted(path.glob(f"checkpoint-*/{FILE}"), key=_number, reverse=True)


def _number(file: Path) -> int:
    """Return the step in the name of a file's folder; 0 unless it is a checkpoint."""
    match = CHECKPOINT.fullmatch(file.parent.name)
    return int(match[1]) if match else 0


def _read_state(file: Path) -> _State | None:
    """Read one file; None if it is gone.

    Raises:
        ConfigError: it is another document, cannot be read, or is larger than 1 GiB.
        ValueError, RecursionError: it is cut or damaged.
    """
    try:
        with open_regular(file.resolve()) as stream:
            data = stream.read(_LARGEST + 1)
    except FileNotFoundError:
        return None
    except OSError as error:
        raise unreadable(file, error) from error
    if len(data) > _LARGEST:
        raise ConfigError(f"{file}: expected at most 1 GiB, got more")
    state = json.loads(data.decode("utf-8", "replace"))
    entries = state.get("log_history") if isinstance(state, dict) else None
    if not isinstance(entries, list):
        raise ConfigError(f"{file}: expected a state of a trainer with a log_history")
    config = {
        key: value
        for key, value in state.items()
        if isinstance(value, (str, int, float, bool)) and key not in _PROGRESS
    }
    return _State(whole_step(state.get("global_step")) or 0, len(entries), entries, config)


def _imported(log: Trl, source: str, options: ImportOptions) -> ImportedRun:
    folder, logged = log.path, list(log.steps())
    home = folder.resolve() if folder.is_dir() else folder.resolve().parent
    arguments = read_arguments(home)
    given = options.settings_of(source)
    theirs = {**arguments, **log.config}
    config: dict[str, Any] = {
        key: value for key in _TABLE["kept"] if isinstance(value := theirs.get(key), _PLAIN)
    }
    for ours, key in _TABLE["keys"].items():
        value = theirs.get(key)
        if _is_number(value) and theirs[key] >= 0:
            assign(config, ours, value)
    run = ImportedRun(source=source, config=config, steps=[], left_out=Counter(log.left_out))
    last = max((step for step, _ in logged), default=0)
    every, steps = config.get("logging_steps"), config.get("steps")
    if not logged:
        run.notes.append(f"there is no {FILE}: metrics are those of the completions")
    elif isinstance(every, int) and isinstance(steps, int) and last + every <= steps:
        run.notes.append(f"the log ends at step {last:,} of {steps:,}")
    found: dict[int, dict[str, float]] = {}
    if folder.is_dir() and completion_tables(folder):
        found = _read_completions(folder, run, arguments, given, logged)
    if "estimator" in given:
        named, scaled = estimator_node(given["estimator"])["name"], config.get("scale_rewards")
        if scaled is not None and named == config.get("loss_type"):
            run.notes.append(
                f"{named} is a loss: its advantages are those of scale_rewards={scaled}"
            )
    if not arguments and "seed" not in given and not options.in_name(source):
        above = home.parent if CHECKPOINT.fullmatch(home.name) else home
        config["place"] = above.name if source == "." else source
        run.notes.append(
            "no arguments of the training can be read (training_args.bin): each folder is a row; "
            "--name-pattern '{estimator}-s{seed}' or --rows estimator say which are replicates"
        )
    run.steps = options.names.combine(logged, found)
    return run


def _read_completions(
    folder: Path,
    run: ImportedRun,
    arguments: Mapping[str, Any],
    given: Mapping[str, Any],
    logged: Sequence[LoggedStep],
) -> dict[int, dict[str, float]]:
    """Return the metrics of the rollouts that were trained on, by step; add notes to the run.

    An evaluation writes its completions over those of the training at the same step: these steps
    lost theirs.
    """
    # torch is needed for completions alone, and this reader also serves `backend=command`.
    from advsweep.logs.rollout_metrics import estimator_of, metrics_of_dump

    assert isinstance(run.left_out, Counter)
    reading = RolloutNotes(left_out=run.left_out)
    weights: dict[str, float] = {}

    def weigh(names: Sequence[str]) -> Mapping[str, float]:
        weights.update(_weights(names, arguments, given))
        return {name: weights[name] for name in names}

    size = given.get("group_size", run.config.get("group_size"))
    size = size if isinstance(size, int) else None
    steps = list(read_rollouts(folder, weigh=weigh, size=size, notes=reading))
    evaluated = {
        step for step, values in logged if any(name.startswith("eval_") for name in values)
    }
    rollouts = [step for step in steps if step.step not in evaluated]
    hidden = sorted(evaluated & {step.step for step in steps})
    if hidden:
        run.left_out["steps whose completions are those of an evaluation"] += len(hidden)
    run.notes += reading.remarks
    if REPEATED not in run.left_out:
        with_reward = [step for step, values in logged if "reward" in values]
        run.notes += missing_steps(with_reward, [step.step for step in steps])
    if any(weight != 1 for weight in weights.values()):
        run.config["reward_weights"] = weights
    # The estimator whose advantages are the logged ones, if there is exactly one.
    fitting = [node for node in _TABLE["estimators"] if estimator_of(node, rollouts)]
    recognised = dict(fitting[0]) if len(fitting) == 1 else None
    if recognised is not None:
        run.config["estimator"] = recognised
    # Whether the rollouts of every generation can be counted: not if those of several steps are
    # the same and some are lost.
    is_every_step = run.config.get("logging_steps") == 1
    if "logging_steps" not in run.config:
        numbers = sorted([*(step.step for step in rollouts), *hidden])
        is_every_step = numbers == list(range(1, len(numbers) + 1))
    dump = metrics_of_dump(
        rollouts,
        merged(run.config, given),
        success_at=success_reward(given),
        counts_rollouts=is_every_step and not (hidden and REPEATED in run.left_out),
    )
    run.config |= {key: size for key, size in dump.sizes.items() if key not in run.config}
    found = {step: dict(values) for step, values in dump.steps}
    if contradiction := _contradiction(logged, found, weights, run.config):
        run.notes.append(contradiction)
        kept = (ROLLOUT_COST,)
        found = {step: {k: own[k] for k in kept if k in own} for step, own in found.items()}
    else:
        if recognised is not None and "estimator" not in given:
            run.notes.append("the estimator was recognised by the logged advantages")
        run.notes += dump.notes + _other_groups(logged, found, run.config)
    # Rollouts that are lost were as many as those of the other steps.
    if dump.sizes and any(ROLLOUT_COST in own for own in found.values()):
        dump.rollouts |= dict.fromkeys(hidden, math.prod(dump.sizes.values()))
        found |= {step: {ROLLOUT_COST: 1.0} for step in hidden}
    for step, values in logged:
        length = values.get("completions/mean_length")
        if length is not None and ROLLOUT_COST in found.get(step, {}):
            found[step][TOKEN_COST] = length * dump.rollouts[step]
    return found


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
    # Weights that are not named are those of the training: leaving them out would be 0.
    weights = dict.fromkeys(names, 1.0)
    listed = arguments.get("reward_weights")
    if isinstance(listed, list) and len(listed) == len(names) and all(map(_is_number, listed)):
        weights = dict(zip(names, map(float, listed), strict=True))
    return weights | {name: float(weight) for name, weight in named.items()}


def _is_number(value: Any) -> bool:
    return isinstance(value, (int, float)) and not isinstance(value, bool)


def _contradiction(
    logged: Sequence[LoggedStep],
    found: Mapping[int, Mapping[str, float]],
    weights: Mapping[str, float],
    config: Mapping[str, Any],
) -> str:
    """Return a sentence if logged rewards are not the weighted sums of the reward functions."""
    # Over several steps the means of the functions are logged, and completions of the last alone.
    is_mean = config.get("logging_steps", 1) != 1
    for step, values in logged:
        parts = [values.get(f"rewards/{name}/mean", math.nan) for name in weights]
        ours = math.fsum(map(operator.mul, parts, weights.values()))
        ours = ours if is_mean else found.get(step, {}).get(REWARD_MEAN, math.nan)
        total = values.get("reward", math.nan)
        if abs(ours - total) > 1e-4 * max(1, abs(total)):
            return (
                f"{sum_of(weights)} has the mean {ours:.6g} at step {step}, the trainer logged "
                f"{total:.6g}: --set reward_weights.NAME=WEIGHT gives other weights. The logged "
                "values are kept, and those of the completions left out"
            )
    return ""


def _other_groups(
    logged: Sequence[LoggedStep],
    found: Mapping[int, Mapping[str, float]],
    config: Mapping[str, Any],
) -> list[str]:
    """Return a sentence if the logged share of groups of equal rewards is another one."""
    for step, values in logged if config.get("logging_steps", 1) == 1 else ():
        own = found.get(step, {})
        ours = own.get(ACR, math.nan)
        theirs = values.get("frac_reward_zero_std", math.nan)
        if not own.get(UNSCORABLE) and abs(ours - theirs) > 1e-6:
            return [
                f"collapse/acr of the completions is {ours:.6g} at step {step}, the trainer logged "
                f"{theirs:.6g}: as with scale_rewards=batch, or with a prompt that comes again in "
                "a step, whose groups --set group_size=N tells apart"
            ]
    return []


def read_arguments(folder: Path) -> dict[str, Any]:
    """Return the arguments in an output folder or its newest checkpoint; empty if unreadable."""
    newest = sorted(folder.glob("checkpoint-*"), key=lambda f: _number(f / FILE), reverse=True)
    for place in (folder, *newest):
        try:
            with open_regular((place / "training_args.bin").resolve()) as stream:
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
        name, needs = code.name, [kind.name for kind in code.stack_before]
        if name == "MARK":
            marks.append(len(stack))
            continue
        if name in ("BINPUT", "LONG_BINPUT", "MEMOIZE"):
            memo[len(memo) if value is None else value] = stack[-1]
            continue
        if name == "STOP":
            return stack[-1]
        # What an opcode takes off the stack: so many, or all since the last mark.
        start = marks.pop() - needs.index("mark") if "mark" in needs else len(stack) - len(needs)
        if start < 0:
            raise ValueError("an opcode takes more than there is")
        taken = stack[start:]
        del stack[start:]
        made: Any = None  # A class, an object of one, or a call, of which nothing is known.
        if name in _LITERALS:
            made = value
        elif name in _CONSTANTS:
            made = _CONSTANTS[name]
        elif name in _EMPTY:
            made = _EMPTY[name]()
        elif name in ("BINGET", "LONG_BINGET"):
            made = memo[value]
        elif name in ("SETITEM", "SETITEMS", "APPEND", "APPENDS"):
            made, *items = taken
            if isinstance(made, dict):
                made |= zip(items[::2], items[1::2], strict=True)
            elif isinstance(made, list):
                made += items
        elif name == "BUILD":
            made = taken[-1]  # The attributes of an object.
        stack += [made] * len(code.stack_after)
    return None
