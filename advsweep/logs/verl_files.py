"""The files of verl's runs in a folder, by their names, and the settings of a run.

The folder of a run has some of these:

    *.jsonl                      the file logger's lines, VERL_FILE_LOGGER_PATH
    rollouts/STEP.jsonl          trainer.rollout_data_dir
    validation/STEP.jsonl        trainer.validation_data_dir; also val/
    .hydra/config.yaml

Logs side by side, PROJECT/EXPERIMENT.jsonl, are a run each. The dumps of such a run are in
rollouts/EXPERIMENT, beside its log or beside PROJECT.
"""

from __future__ import annotations

import functools
import json
import os
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from advsweep.errors import AdvsweepError, ConfigError, counted
from advsweep.local_files import open_regular
from advsweep.printable import printable_line
from advsweep.yaml_files import read_yaml

_TABLE = Path(__file__).with_name("verl_settings.yaml")
_OURS = "advsweep"
"""The value of adv_estimator that names an estimator of ours in algorithm.advsweep."""

_OF_ESTIMATOR = (
    "algorithm.adv_estimator",
    "algorithm.norm_adv_by_std_in_grpo",
    f"algorithm.{_OURS}",
)

_DEPTH = 8
_MOST_FILES = 200_000
_HEAD = 2**20
"""Bytes at the start of a file by which it is recognised."""

_ENDINGS = (".jsonl", ".ndjson", ".json")
_CHECKPOINTS = re.compile(r"global_step_\d+|checkpoint-\d+")
_DUMPS = {"rollouts": ("rollouts",), "validation": ("validation", "val")}
"""Names of the folders of dumps, by the attribute of `VerlFiles`."""


@dataclass
class VerlFiles:
    """The files of one run.

    Attributes:
        source: where it is, relative to what the user named.
        log: what the file logger wrote.
        rollouts, validation: dumps, a file per step, in the order of the steps.
        settings: `.hydra/config.yaml`.
    """

    source: str
    log: Path | None = None
    rollouts: list[Path] = field(default_factory=list)
    validation: list[Path] = field(default_factory=list)
    settings: Path | None = None


def find_runs(source: Path) -> tuple[list[VerlFiles], list[str]]:
    """Return the runs below a folder, and a sentence about dumps that belong to none.

    Raises:
        ConfigError: there is no such file or folder, or nothing of verl in it.
    """
    shown = printable_line(str(source))
    if not source.exists():
        raise ConfigError(f"{shown}: expected a file or folder of verl's logs, there is none")
    root = source if source.is_dir() else source.parent
    logs: dict[Path, list[Path]] = {}
    dumps: dict[Path, list[Path]] = {}
    for file in _files(source) if source.is_dir() else [source]:
        row = _first_row(file)
        if isinstance(row.get("data"), dict) and "step" in row:
            logs.setdefault(file.parent, []).append(file)
        elif "score" in row and ("input" in row or "output" in row):
            dumps.setdefault(file.parent, []).append(file)
    if not logs and not dumps:
        raise ConfigError(
            f"{shown}: expected JSON lines of verl's file logger (step and data), or dumps of "
            "rollouts or validation samples (input, output and score), got none; set "
            "VERL_FILE_LOGGER_PATH with trainer.logger=[file], trainer.rollout_data_dir or "
            "trainer.validation_data_dir"
        )
    lost = dict(dumps)
    runs = []
    for home, own in logs.items():
        for log in own:
            # A single log names its run by its folder; logs side by side by their own names.
            place = home if len(own) == 1 else log.with_suffix("")
            above = [home] if len(own) == 1 else [home, home.parent]
            end = "" if len(own) == 1 else log.stem
            run = _run(place.relative_to(root).as_posix(), above, end, lost)
            run.log = log
            runs.append(run)
    named = [folder for folder in lost if folder != root and _kind(folder)]
    for home in dict.fromkeys(folder.parent for folder in named):
        runs.append(_run(home.relative_to(root).as_posix(), [home], "", lost))
    if not runs:
        # Without the names above, each folder of dumps is a run.
        for folder in lost:
            kind = _kind(folder) or "rollouts"
            runs.append(VerlFiles(folder.relative_to(root).as_posix()))
            setattr(runs[-1], kind, dumps[folder])
        lost = {}
    for run in runs:
        run.rollouts.sort(key=_step_order)
        run.validation.sort(key=_step_order)
    remarks = []
    if lost:
        remarks.append(
            f"left out {counted(f'{len(lost):,}', 'folder')} of no single run (dumps are in "
            "rollouts and validation in its folder), such as "
            f"{printable_line(next(iter(lost)).relative_to(root).as_posix())}"
        )
    return runs, remarks


def _kind(folder: Path) -> str | None:
    return next((kind for kind, names in _DUMPS.items() if folder.name in names), None)


def _run(source: str, above: list[Path], end: str, lost: dict[Path, list[Path]]) -> VerlFiles:
    """Return the run of a folder, and take its dumps.

    Args:
        above: folders that may have those of the dumps.
        end: the folder within those of the dumps.
        lost: dumps by folder, without those of other runs.
    """
    run = VerlFiles(source)
    for kind, names in _DUMPS.items():
        places = [folder / name / end for folder in above for name in names]
        setattr(run, kind, next((lost.pop(place) for place in places if place in lost), []))
    settings = above[0] / ".hydra" / "config.yaml"
    run.settings = settings if settings.is_file() else None
    return run


def _files(folder: Path) -> Iterator[Path]:
    """Yield the files that may matter, in a fixed order; links are not followed."""
    count = 0
    depth = len(folder.parts)
    for place, folders, names in os.walk(folder):
        here = Path(place)
        deep = len(here.parts) - depth >= _DEPTH
        folders[:] = sorted(
            name
            for name in folders
            if not deep and not name.startswith(".") and not _CHECKPOINTS.fullmatch(name)
        )
        for name in sorted(names):
            count += 1
            if count > _MOST_FILES:
                raise ConfigError(
                    f"{printable_line(str(folder))}: expected at most {_MOST_FILES:,} files, got "
                    "more; name the folder of one run"
                )
            if name.endswith(_ENDINGS):
                yield here / name


def _first_row(file: Path) -> dict[str, Any]:
    """Return the first object among the first lines of a file; empty without one."""
    try:
        with open_regular(file.resolve()) as stream:
            head = stream.read(_HEAD)
    except OSError:
        return {}
    for line in head.split(b"\n")[:8]:
        try:
            row = json.loads(line)
        except (ValueError, RecursionError):
            continue
        if isinstance(row, dict):
            return row
    return {}


def _step_order(file: Path) -> tuple[int, str]:
    stem = file.stem
    return (int(stem) if stem.isdecimal() and len(stem) <= 18 else 0), file.name


class Settings:
    """Settings of one run.

    Attributes:
        theirs: as the file has them; nothing in it is resolved.
        problem: why the file could not be used; empty if it could.
    """

    def __init__(self, path: Path | None) -> None:
        self.theirs: dict[str, Any] = {}
        self.problem = ""
        if path is None:
            return
        try:
            content = read_yaml(path)
        except (AdvsweepError, OSError) as error:
            self.problem = " ".join(str(error).split())
            return
        if isinstance(content, dict):
            self.theirs = {str(key): value for key, value in content.items()}
        else:
            self.problem = f"{path}: expected a mapping of settings"

    def get(self, key: str) -> Any:
        """Return the value of a dotted key; None without one."""
        node: Any = self.theirs
        for part in key.split("."):
            if not isinstance(node, Mapping) or part not in node:
                return None
            node = node[part]
        return node

    def config(self) -> dict[str, Any]:
        """Return the config of the run: our keys, and those of theirs that have none of ours."""
        table = _table()
        ours = {"estimator", "backend", "rows"} | {key.partition(".")[0] for key in table["keys"]}
        config = {key: value for key, value in self.theirs.items() if key not in ours}
        translated = [*table["keys"].values(), *_OF_ESTIMATOR]
        config = _without(config, frozenset([*table["of_one_run"], *translated]))
        for ours, theirs in table["keys"].items():
            value = self.get(theirs)
            if _is_known(value):
                node, _, leaf = ours.rpartition(".")
                (config.setdefault(node, {}) if node else config)[leaf] = value
        if (estimator := self._estimator(table)) is not None:
            config["estimator"] = estimator
        return config

    @property
    def keeps_all_rollouts(self) -> bool:
        """Whether every generated rollout is trained on, and so logged and dumped."""
        return self.get("algorithm.filter_groups.enable") is not True

    def _estimator(self, table: Mapping[str, Any]) -> dict[str, Any] | None:
        name = self.get("algorithm.adv_estimator")
        if not isinstance(name, str):
            return None
        own = self.get(f"algorithm.{_OURS}")
        if name == _OURS and isinstance(own, dict) and isinstance(own.get("name"), str):
            return own
        known = table["estimators"].get(name, {})
        scaled = self.get("algorithm.norm_adv_by_std_in_grpo") is not False
        chosen = known.get("scaled") if scaled or "unscaled" not in known else known["unscaled"]
        # A name of theirs must not stand for an estimator of ours with other numbers.
        return dict(chosen) if chosen else {"name": f"verl_{name}"}


@functools.cache
def _table() -> dict[str, Any]:
    table: dict[str, Any] = read_yaml(_TABLE)
    return table


def _is_known(value: Any) -> bool:
    """Whether a setting has a value: null and -1 stand for none, ${...} for one elsewhere."""
    if isinstance(value, str):
        return bool(value) and "${" not in value
    return isinstance(value, (int, float)) and not isinstance(value, bool) and value >= 0


def _without(node: Mapping[Any, Any], keys: frozenset[str], above: str = "") -> dict[str, Any]:
    """Return settings without some keys, seeds and names of classes."""
    kept: dict[str, Any] = {}
    for key, value in node.items():
        path, name = f"{above}{key}", str(key)
        if path in keys or name in ("_target_", "seed") or name.endswith("_seed"):
            continue
        kept[name] = _without(value, keys, f"{path}.") if isinstance(value, Mapping) else value
    return kept
