"""Imports runs of TRL's GRPOTrainer: the trainer's state, and completions.

    advsweep import trl output_dir

`trainer_state.json` is written with each checkpoint; the newest has the whole history. With
`log_completions` TRL (1.16) also writes the rewards and advantages of each logged step. Arguments
of the trainer are kept in a pickle alone (training_args.bin), which is not opened.
"""

from __future__ import annotations

import functools
import os
import re
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar

from advsweep.errors import ConfigError
from advsweep.importing.base import ImportedRun, Importer, ImportOptions
from advsweep.importing.rollout_metrics import (
    DumpMetrics,
    estimator_of,
    metrics_of_dump,
    success_reward,
)
from advsweep.importing.settings import merged
from advsweep.logs import LoggedStep, open_metric_log, read_all
from advsweep.logs.rollout_parquet import REPEATED
from advsweep.logs.rollouts import RolloutNotes, RolloutStep, read_rollouts
from advsweep.printable import printable_line
from advsweep.yaml_files import read_yaml

_STATE = "trainer_state.json"
_CHECKPOINT = re.compile(r"checkpoint-\d+")
_DEPTH = 6
_TABLE = Path(__file__).with_name("trl_settings.yaml")


@dataclass(kw_only=True)
class Trl(Importer):
    """Reads output folders of GRPOTrainer, or folders of such.

    Settings: `reward_weights`, the weights of reward functions by name (1 each), and `success_at`,
    the reward from which a rollout counts as a success (1).
    """

    name: ClassVar[str] = "trl"
    table: ClassVar[str] = "trl"

    def read(self, source: Path | str, options: ImportOptions) -> Iterator[ImportedRun]:
        source = Path(source)
        shown = printable_line(str(source))
        if not source.exists():
            raise ConfigError(f"{shown}: expected an output folder of TRL, there is none")
        folders = [source] if source.is_file() else list(_run_folders(source))
        if not folders:
            raise ConfigError(
                f"{shown}: expected {_STATE}, checkpoint-N/{_STATE} or completions/*.parquet, got "
                "none; the trainer writes its state with each checkpoint (save_steps), and "
                "completions with log_completions=True"
            )
        for folder in folders:
            place = "." if folder.is_file() else folder.relative_to(source).as_posix()
            yield _imported(folder, place, options)


def _run_folders(source: Path) -> Iterator[Path]:
    """Yields the folders that hold a run, in a fixed order; links are not followed."""
    depth = len(source.parts)
    for place, folders, names in os.walk(source):
        here = Path(place)
        inside = [name for name in folders if _CHECKPOINT.fullmatch(name)]
        has_state = _STATE in names or any((here / name / _STATE).is_file() for name in inside)
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


def _imported(folder: Path, source: str, options: ImportOptions) -> ImportedRun:
    left_out: Counter[str] = Counter()
    log = open_metric_log("trainer_state", folder)
    logged = read_all(log)
    left_out.update(log.left_out)
    config = _settings(log.config)
    notes: list[str] = []
    dump, hidden = DumpMetrics(), frozenset[int]()
    given = options.settings_of(source)
    if folder.is_dir() and _has_completions(folder):
        rollouts, hidden = _rollouts(folder, given, left_out, notes, logged)
        if _recognise(rollouts, config) and "estimator" not in given:
            notes.append("the estimator was recognised by the logged advantages")
        dump = metrics_of_dump(
            rollouts,
            merged(config, given),
            success_at=success_reward(given),
            counts_rollouts=_logs_every_step(config, rollouts, hidden, left_out),
        )
        notes += dump.notes + _compare_rewards(logged, dump)
    for key, value in (("prompts_per_step", dump.prompts), ("group_size", dump.group_size)):
        if value is not None:
            config.setdefault(key, value)
    return ImportedRun(
        source=source,
        config=config,
        steps=_steps(logged, dump, hidden, options),
        left_out=left_out,
        notes=notes,
    )


@functools.cache
def _table() -> dict[str, Any]:
    table: dict[str, Any] = read_yaml(_TABLE)
    return table


def _settings(state: Mapping[str, Any]) -> dict[str, Any]:
    table = _table()
    config = {key: state[key] for key in table["kept"] if key in state}
    for ours, theirs in table["keys"].items():
        value = state.get(theirs)
        if isinstance(value, int) and value > 0:
            config[ours] = value
    return config


def _rollouts(
    folder: Path,
    given: Mapping[str, Any],
    left_out: Counter[str],
    notes: list[str],
    logged: Sequence[LoggedStep],
) -> tuple[list[RolloutStep], frozenset[int]]:
    """Returns the rollouts that were trained on, and the steps whose rollouts are lost.

    An evaluation writes its completions over those of the training at the same step.
    """
    weights = given.get("reward_weights")
    if weights is not None and not (
        isinstance(weights, Mapping)
        and all(isinstance(w, (int, float)) and not isinstance(w, bool) for w in weights.values())
    ):
        raise ConfigError(
            "reward_weights: expected numbers by the names of reward functions, such as "
            f"--set reward_weights.accuracy_reward=1; got {str(weights)[:100]!r}"
        )
    reading = RolloutNotes(left_out=left_out)
    evaluated = {
        step for step, values in logged if any(name.startswith("eval_") for name in values)
    }
    steps = list(read_rollouts(folder, "trl", rewards=weights, notes=reading))
    trained = [step for step in steps if step.step not in evaluated]
    hidden = frozenset(step.step for step in steps) & evaluated
    if hidden:
        left_out["steps whose completions are those of an evaluation"] += len(hidden)
    notes += reading.remarks
    return trained, hidden


def _recognise(rollouts: Sequence[RolloutStep], config: dict[str, Any]) -> bool:
    """Sets the estimator whose advantages are the logged ones, if there is exactly one."""
    fitting = [node for node in _table()["estimators"] if estimator_of(node, rollouts)]
    if len(fitting) == 1:
        config["estimator"] = dict(fitting[0])
    return len(fitting) == 1


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


def _compare_rewards(logged: Sequence[LoggedStep], dump: DumpMetrics) -> list[str]:
    """Returns a sentence if the rewards of the completions are not those of the trainer."""
    computed = {step: values.get("reward/mean") for step, values in dump.steps}
    for step, values in logged:
        ours, theirs = computed.get(step), values.get("reward")
        if (
            ours is not None
            and theirs is not None
            and abs(ours - theirs) > 1e-4 * max(1, abs(ours))
        ):
            return [
                f"the rewards of the completions have the mean {ours:.6g} at step {step}, the "
                f"trainer logged {theirs:.6g}: --set reward_weights.NAME=WEIGHT gives the weights "
                "of the reward functions"
            ]
    return []


def _steps(
    logged: Sequence[LoggedStep],
    dump: DumpMetrics,
    hidden: frozenset[int],
    options: ImportOptions,
) -> Iterator[LoggedStep]:
    """Yields what is logged, then what the completions say, which counts where both say it.

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
