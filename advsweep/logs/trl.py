"""Runs of TRL's GRPOTrainer: the trainer's state, its arguments, and completions.

    advsweep import trl output_dir

`trainer_state.json` of transformers' Trainer is written with each checkpoint; the last has the
whole history. With `log_completions` TRL (1.16) also writes the rewards and advantages of each
logged step.

The arguments lie next to each model as a pickle, `training_args.bin`, of which only plain data is
read (`advsweep.logs.pickles`).
"""

from __future__ import annotations

import io
import json
import re
import zipfile
import zlib
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from operator import itemgetter
from pathlib import Path
from typing import Any, ClassVar, NamedTuple

from advsweep.errors import ConfigError
from advsweep.local_files import open_regular
from advsweep.logs.base import (
    ImportedRun,
    ImportOptions,
    Reader,
    existing,
    folders_of_runs,
    is_number,
    unreadable,
    whole_step,
)
from advsweep.logs.completion_tables import completion_tables
from advsweep.logs.console import Console, is_console
from advsweep.logs.names import LoggedStep, assign, estimator_node
from advsweep.logs.pickles import plain_pickle
from advsweep.printable import printable_line
from advsweep.yaml_files import read_yaml

FILE = "trainer_state.json"
CHECKPOINT = re.compile(r"checkpoint-(\d{1,12})")

# Entries of a state that say how far a training is, or where its files are.
_PROGRESS = (
    "best_model_checkpoint",
    "epoch",
    "global_step",
    "best_global_step",
    "best_metric",
    "total_flos",
)

_CUT = "states that are cut"
_LARGEST = 2**30
_MOST_BYTES = 2**20

_DAMAGED = (
    OSError,
    EOFError,
    ValueError,
    LookupError,
    TypeError,
    RuntimeError,
    zipfile.BadZipFile,
    zlib.error,
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
            marks = [_mark(file) for file in files]
        except FileNotFoundError:  # A checkpoint that is being deleted.
            return
        # Files are whole JSON documents, of which the last may have hundreds of megabytes.
        if marks == self._seen:
            return
        self._seen = marks
        state = self._newest_state(files)
        self._config = state.config
        count = len(self._entries)
        # A training that resumed from an earlier checkpoint logs later steps again.
        is_longer = state.entries[:count] == self._entries
        new_entries = state.entries[count:] if is_longer else state.entries
        self._entries = state.entries
        for entry in new_entries:
            step = whole_step(entry.get("step")) if isinstance(entry, dict) else None
            if step is None:
                self.left_out["entries without a step"] += 1
                continue
            items = [(k, v) for k, v in entry.items() if k != "step" and v is not None]
            yield LoggedStep(step, self._numbers(items))

    def _newest_state(self, files: Sequence[Path]) -> _State:
        """Return the complete state with the greatest step; the former one if there is none."""
        # What was being written at the last call may be complete by now.
        for reason in [reason for reason in self.left_out if reason.startswith(_CUT)]:
            del self.left_out[reason]
        newest = _State(0, 0, self._entries, self._config)
        for file in files:
            try:
                state = _read_state(file)
            except ConfigError:
                raise
            except (ValueError, RecursionError):
                # Cut by a copy, or not written to its end yet.
                name = file.name if file == self.path else file.relative_to(self.path)
                self.left_out[f"{_CUT} ({name})"] = 1
                continue
            if state is None:
                continue
            newest = max(newest, state, key=itemgetter(0, 1))
            # Checkpoints come newest first.
            if file.parent != self.path:
                break
        return newest


def _mark(file: Path) -> tuple[Path, int, int]:
    """Return what changes with the content of a file."""
    status = file.stat()
    return file, status.st_mtime_ns, status.st_size


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
    folder = log.path
    logged = list(log.steps())
    home = folder.resolve() if folder.is_dir() else folder.resolve().parent
    arguments = read_arguments(home)
    settings = options.settings_of(source)
    config = _config_of({**arguments, **log.config})
    run = ImportedRun(source=source, config=config, steps=[], left_out=Counter(log.left_out))
    run.notes += _notes_on_length(logged, config)
    of_completions: Mapping[int, Mapping[str, float]] = {}
    if folder.is_dir() and completion_tables(folder):
        # It loads torch, which completions alone need; this reader also serves `backend=command`.
        from advsweep.logs.trl_completions import Training, read_completions

        training = Training(arguments, settings, logged)
        of_completions = read_completions(folder, run, training, _TABLE["estimators"])
    run.notes += _notes_on_loss(settings, config)
    if not arguments and "seed" not in settings and not options.in_name(source):
        above = home.parent if CHECKPOINT.fullmatch(home.name) else home
        config["place"] = above.name if source == "." else source
        run.notes.append(
            "no arguments of the training can be read (training_args.bin): each folder is a row; "
            "--name-pattern '{estimator}-s{seed}' or --rows estimator say which are replicates"
        )
    run.steps = options.names.combine(logged, of_completions)
    return run


def _config_of(theirs: Mapping[str, Any]) -> dict[str, Any]:
    """Return the settings that are kept of the trainer's, and those that have a key of ours."""
    config: dict[str, Any] = {}
    for key in _TABLE["kept"]:
        value = theirs.get(key)
        if isinstance(value, (str, int, float)):
            config[key] = value
    for key, theirs_key in _TABLE["keys"].items():
        value = theirs.get(theirs_key)
        if is_number(value) and value >= 0:
            assign(config, key, value)
    return config


def _notes_on_length(logged: Sequence[LoggedStep], config: Mapping[str, Any]) -> list[str]:
    """Return a sentence if the log ends early, or there is none."""
    if not logged:
        return [f"there is no {FILE}: metrics are those of the completions"]
    every = config.get("logging_steps")
    steps = config.get("steps")
    last = max(step for step, _ in logged)
    if isinstance(every, int) and isinstance(steps, int) and last + every <= steps:
        return [f"the log ends at step {last:,} of {steps:,}"]
    return []


def _notes_on_loss(settings: Mapping[str, Any], config: Mapping[str, Any]) -> list[str]:
    """Return a sentence if the estimator that the user names is the name of a loss of TRL."""
    scaled = config.get("scale_rewards")
    if "estimator" not in settings or scaled is None:
        return []
    name = estimator_node(settings["estimator"])["name"]
    if name != config.get("loss_type"):
        return []
    return [f"{name} is a loss: its advantages are those of scale_rewards={scaled}"]


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
