"""Runs of TRL's GRPOTrainer: the trainer's state, and completions.

    advsweep import trl output_dir

`trainer_state.json` is written with each checkpoint; the last has the whole history. With
`log_completions` TRL (1.16) also writes the rewards and advantages of each logged step.
"""

from __future__ import annotations

import functools
import math
import operator
import os
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar

import numpy as np

from advsweep.errors import ConfigError, nearest
from advsweep.logs.base import ImportedRun, ImportOptions
from advsweep.logs.names import LoggedStep, assign, estimator_node, merged
from advsweep.logs.rollout_metrics import (
    DumpMetrics,
    estimator_of,
    metrics_of_dump,
    missing_steps,
    success_reward,
)
from advsweep.logs.rollouts import REPEATED, RolloutNotes, RolloutStep, read_rollouts, sum_of
from advsweep.logs.trl_state import CHECKPOINT, FILE, TrainerState, read_arguments
from advsweep.printable import printable_line
from advsweep.yaml_files import read_yaml

if TYPE_CHECKING:
    from jaxtyping import Float

_DEPTH = 6
_TABLE = Path(__file__).with_name("trl_settings.yaml")


@dataclass(kw_only=True)
class Trl(TrainerState):
    """Reads output folders of GRPOTrainer, or folders of such.

    Settings: `reward_weights`, weights of reward functions by name (of the others: as the
    training's arguments say, or 1), and `success_at`, the reward from which a rollout counts as a
    success (1).
    """

    name: ClassVar[str] = "trl"
    table: ClassVar[str] = "trl"

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
    own = {step: values.get("reward/mean") for step, values in dump.steps}
    # Over several steps the means of the functions are logged, and completions of the last alone.
    is_mean = config.get("logging_steps", 1) != 1
    rows: list[list[float]] = []
    found = ""
    for step, values in logged:
        parts = [values.get(f"rewards/{name}/mean", math.nan) for name in weights]
        total = values.get("reward", math.nan)
        rows.append([*parts, total])
        ours = math.fsum(map(operator.mul, parts, weights.values())) if is_mean else own.get(step)
        if not found and ours is not None and abs(ours - total) > _tolerance(total):
            found = f"{ours:.6g} at step {step}, the trainer logged {total:.6g}"
    fitting = _fitted(np.array(rows)[~np.isnan(rows).any(axis=1)]) if found else None
    # Means of functions that did not score every rollout do not add up to the mean of the sum.
    if not found or (is_mean and fitting is None):
        return ""
    why = "no weights explain that"
    if fitting is not None:
        pairs = zip(weights, fitting, strict=True)
        chosen = [f"--set reward_weights.{printable_line(n)}={w:g}" for n, w in pairs]
        why = f"these weights explain it: {' '.join(chosen)}"
    return (
        f"{sum_of(weights)} has the mean {found}; {why}. The logged values are kept, and those of "
        "the completions left out"
    )


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


def _tolerance(total: float) -> float:
    return 1e-4 * max(1, abs(total))


def _fitted(rows: Float[np.ndarray, "steps functions"]) -> list[float] | None:
    """Return weights that explain the last column by the others: of 1, or by least squares."""
    parts, total = rows[:, :-1], rows[:, -1]
    candidates = [np.ones(parts.shape[1])]
    if len(rows) > parts.shape[1] == np.linalg.matrix_rank(parts):
        candidates.append(np.linalg.lstsq(parts, total, rcond=None)[0])
    for weights in candidates:
        rounded = [float(f"{weight:.3g}") for weight in weights]
        if len(rows) and (abs(parts @ rounded - total) <= _tolerance(total.max())).all():
            return rounded
    return None


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
