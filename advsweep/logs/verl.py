"""Runs of verl: its file logger, its dumps of rollouts and validation, Hydra's settings.

    advsweep import verl outputs/grpo-gsm8k

Facts about the formats are of verl 0.9.1, its V1 trainer and the one before. The file logger
starts its file anew when a run is resumed; dumps of earlier steps remain. NaN is written as null.

The folder of a run has some of these:

    *.jsonl                      the file logger's lines, VERL_FILE_LOGGER_PATH
    rollouts/STEP.jsonl          trainer.rollout_data_dir
    validation/STEP.jsonl        trainer.validation_data_dir; also val/
    .hydra/config.yaml

Logs side by side, PROJECT/EXPERIMENT.jsonl, are a run each. The dumps of such a run are in
rollouts/EXPERIMENT, beside its log.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar

from advsweep.components import option
from advsweep.errors import AdvsweepError, ConfigError, counted
from advsweep.logs.base import ImportedRun, ImportOptions, existing, folders_of_runs, is_number
from advsweep.logs.console import Console, is_console
from advsweep.logs.dump_checks import (
    fewer_than_usual,
    missing_steps,
    problem_counts,
    success_reward,
)
from advsweep.logs.json_lines import JsonLines
from advsweep.logs.names import LoggedStep, assign, merged, value_at
from advsweep.logs.rollout_records import RolloutNotes, RolloutStep
from advsweep.logs.rollouts import line_files, read_rollouts
from advsweep.names import ROLLOUT_COST, TOKEN_COST
from advsweep.printable import printable_line
from advsweep.yaml_files import read_yaml

_TABLE: dict[str, Any] = read_yaml(Path(__file__).with_name("verl_settings.yaml"))
_SETTINGS = Path(".hydra", "config.yaml")
# The value of adv_estimator that names an estimator of ours in algorithm.advsweep.
_OURS = "advsweep"

_OF_ESTIMATOR = (
    "algorithm.adv_estimator",
    "algorithm.norm_adv_by_std_in_grpo",
    f"algorithm.{_OURS}",
)

# What is dumped, by the names of the folders of dumps.
_NAMES = {"rollouts": "rollouts", "validation": "validation", "val": "validation"}


@dataclass(kw_only=True)
class Verl(JsonLines):
    """Reads folders of runs of verl; while a run trains, the JSON lines of its file logger.

    A setting `success_at` is the score from which a rollout counts as a success (1), where dumps
    have no `acc`.
    """

    name: ClassVar[str] = "verl"
    table: ClassVar[str] = "verl"

    data_key: str = option("data", help="key of the mapping with the values")

    def runs(self, source: Path | str, options: ImportOptions) -> Iterator[ImportedRun]:
        root = existing(source)
        if is_console(root):
            yield from Console().runs(root, options)
            return
        runs, remarks = _find_runs(root)
        for files in runs:
            run = self._imported(files, options)
            run.notes += remarks
            remarks = []
            yield run

    def _imported(self, files: _Files, options: ImportOptions) -> ImportedRun:
        # torch is needed for dumps alone, and this reader also serves `backend=command`.
        from advsweep.logs.rollout_metrics import DumpMetrics, metrics_of_dump

        notes: list[str] = []
        left_out: Counter[str] = Counter()
        theirs = _read_settings(files.settings, notes)
        config = _config(theirs)
        settings = options.settings_of(files.source)
        success_at = success_reward(settings)
        dump = DumpMetrics()
        if files.dumps["rollouts"]:
            rollouts = _read_dumps(files.dumps["rollouts"], left_out)
            dump = metrics_of_dump(rollouts, merged(config, settings), success_at=success_at)
        config |= {key: size for key, size in dump.sizes.items() if key not in config}
        evaluations = problem_counts(files.dumps["validation"], success_at, left_out)
        samples = Counter[int]()
        for result in evaluations:
            samples[result.step] += result.n
        notes += dump.notes + fewer_than_usual(samples, "validation samples")
        logged: list[LoggedStep] = []
        if files.log is not None:
            log = self.open(files.log)
            logged = list(log.steps())
            left_out.update(log.left_out)
        if not logged:
            notes.append("there is no line of the file logger: metrics are those of the rollouts")
        if dump.rollouts:
            steps = [step for step, values in logged if "critic/score/mean" in values]
            notes += missing_steps(steps, dump.rollouts)
        if not theirs:
            notes.append("there are no settings (.hydra/config.yaml); --set adds what is known")
        of_dump = {step: dict(values) for step, values in dump.steps}
        # Otherwise every generated rollout is trained on.
        if value_at(theirs, "algorithm.filter_groups.enable") is not True:
            _add_costs(of_dump, logged, merged(config, settings))
        return ImportedRun(
            source=files.source,
            config=config,
            steps=options.names.combine(logged, of_dump),
            evaluations=evaluations,
            left_out=left_out,
            notes=notes,
        )


def _read_dumps(files: Iterable[Path], left_out: Counter[str]) -> list[RolloutStep]:
    """Return the steps of dumps, a file each."""
    notes = RolloutNotes(left_out=left_out)
    rollouts: list[RolloutStep] = []
    for file in files:
        try:
            rollouts += read_rollouts(file, notes=notes)
        except ConfigError:  # A damaged file does not hide the others.
            left_out["dumps without a rollout that can be read"] += 1
    return rollouts


def _add_costs(
    by_step: dict[int, dict[str, float]],
    logged: Iterable[LoggedStep],
    sizes: Mapping[str, Any],
) -> None:
    """Add the costs of the logged training steps that have none; all of their rollouts count."""
    prompts = sizes.get("prompts_per_step")
    size = sizes.get("group_size")
    if not isinstance(prompts, int) or not isinstance(size, int):
        return
    for step, values in logged:
        if "critic/score/mean" not in values:
            continue
        of_step = by_step.setdefault(step, {})
        of_step.setdefault(ROLLOUT_COST, 1.0)
        length = values.get("response_length/mean")
        if length is not None:
            of_step.setdefault(TOKEN_COST, length * prompts * size)


@dataclass
class _Files:
    """The files of one run.

    Attributes:
        source: where it is, relative to what the user named.
        log: what the file logger wrote.
        dumps: of `rollouts` and `validation`, a file per step, in the order of the steps.
        settings: `.hydra/config.yaml`, which need not exist.
    """

    source: str
    log: Path | None
    dumps: Mapping[str, list[Path]]
    settings: Path


def _find_runs(source: Path) -> tuple[list[_Files], list[str]]:
    """Return the runs below a folder, and a sentence about dumps that belong to none.

    Raises:
        ConfigError: there is nothing of verl in it.
    """
    if source.is_file():
        nothing: dict[str, list[Path]] = {"rollouts": [], "validation": []}
        return [_Files(".", source, nothing, source.parent / _SETTINGS)], []
    runs: list[_Files] = []
    others = []
    for home in folders_of_runs(source, _NAMES):
        place = home.relative_to(source).as_posix()
        lines = line_files(home)
        logs = [file for file in lines if not file.stem.isdecimal()]
        if len(logs) > 1:
            for log in logs:
                own = (home / log.stem).relative_to(source).as_posix()
                runs.append(_Files(own, log, _dumps(home, log.stem), home / _SETTINGS))
        elif logs or any(_dumps(home).values()):
            runs.append(_Files(place, next(iter(logs), None), _dumps(home), home / _SETTINGS))
        if len(logs) < len(lines):
            others.append(place)
    if not runs:
        raise ConfigError(
            f"{printable_line(str(source))}: expected JSON lines of verl's file logger, or dumps "
            "in folders rollouts and validation, got none; set VERL_FILE_LOGGER_PATH with "
            "trainer.logger=[file], trainer.rollout_data_dir or trainer.validation_data_dir"
        )
    remarks = []
    if others:
        remarks.append(
            f"left out {counted(len(others), 'folder')} of files named by steps (dumps are in "
            f"rollouts and validation in the folder of a run), such as {printable_line(others[0])}"
        )
    return runs, remarks


def _dumps(home: Path, end: str = "") -> dict[str, list[Path]]:
    """Return the dumps in a folder by kind."""
    found: dict[str, list[Path]] = {}
    for name, kind in _NAMES.items():
        found[kind] = found.get(kind) or line_files(home / name / end)
    return found


def _read_settings(path: Path, notes: list[str]) -> dict[str, Any]:
    """Return the settings as the file has them; nothing in it is resolved."""
    if not path.is_file():
        return {}
    try:
        content = read_yaml(path, strict=False)
    except (AdvsweepError, OSError) as error:
        notes.append(f"the settings were left out: {' '.join(str(error).split())}")
        return {}
    return {str(key): value for key, value in content.items()} if isinstance(content, dict) else {}


def _config(theirs: Mapping[str, Any]) -> dict[str, Any]:
    """Return the config of the run: our keys, and those of theirs that have none of ours."""
    our_keys = {"estimator", "backend", "rows"} | {key.partition(".")[0] for key in _TABLE["keys"]}
    # Of theirs, a node called as one of ours would be taken for it: a backend, a model.
    config = {key: value for key, value in theirs.items() if key not in our_keys}
    translated = [*_TABLE["keys"].values(), *_OF_ESTIMATOR]
    config = _without(config, frozenset([*_TABLE["of_one_run"], *translated]))
    for key, their_key in _TABLE["keys"].items():
        value = value_at(theirs, their_key)
        if _is_set(value):
            assign(config, key, value)
    estimator = _estimator(theirs)
    if estimator is not None:
        config["estimator"] = estimator
    return config


def _is_set(value: Any) -> bool:
    """Return whether a setting has a value: null and -1 stand for none, ${...} for another's."""
    if isinstance(value, str):
        return value != "" and "${" not in value
    return is_number(value) and value >= 0


def _estimator(theirs: Mapping[str, Any]) -> dict[str, Any] | None:
    """Return the node of the estimator; None if the settings name none."""
    name = value_at(theirs, "algorithm.adv_estimator")
    node = value_at(theirs, f"algorithm.{_OURS}")
    if name == _OURS and isinstance(node, dict) and isinstance(node.get("name"), str):
        return node
    if not isinstance(name, str):
        return None
    variants = _TABLE["estimators"].get(name, {})
    is_scaled = value_at(theirs, "algorithm.norm_adv_by_std_in_grpo") is not False
    if is_scaled or "unscaled" not in variants:
        chosen = variants.get("scaled")
    else:
        chosen = variants["unscaled"]
    # A name of theirs must not stand for an estimator of ours with other numbers.
    return dict(chosen) if chosen else {"name": f"verl_{name}"}


def _without(node: Mapping[Any, Any], keys: frozenset[str], above: str = "") -> dict[str, Any]:
    """Return settings without some keys, seeds and names of classes."""
    kept: dict[str, Any] = {}
    for key, value in node.items():
        path, name = f"{above}{key}", str(key)
        if path in keys or name in ("_target_", "seed") or name.endswith("_seed"):
            continue
        kept[name] = _without(value, keys, f"{path}.") if isinstance(value, Mapping) else value
    return kept
