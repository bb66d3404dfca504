"""The files of verl's runs in a folder, found by what is in them, and the settings of a run.

A run has a log of its metrics (the file logger), rollouts, validation samples, and the settings
that Hydra wrote, each of them or some. Files belong to the run whose folder they share.
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
_VALIDATION = re.compile(r"(?:^|[^a-z])val(?:id|idation)?(?:$|[^a-z])|eval", re.IGNORECASE)

LOG, ROLLOUTS, VALIDATION = "log", "rollouts", "validation"


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


@dataclass
class _Found:
    logs: list[Path] = field(default_factory=list)
    dumps: dict[tuple[Path, str], list[Path]] = field(default_factory=dict)
    settings: list[Path] = field(default_factory=list)
    unread: list[Path] = field(default_factory=list)


def find_runs(source: Path) -> tuple[list[VerlFiles], list[str]]:
    """Return the runs below a folder, and a sentence about files that belong to none.

    Raises:
        ConfigError: there is no such file or folder, or nothing of verl in it.
    """
    shown = printable_line(str(source))
    if not source.exists():
        raise ConfigError(f"{shown}: expected a file or folder of verl's logs, there is none")
    found = _Found()
    if source.is_file():
        _add(found, source)
        root = source.parent
    else:
        root = source
        for file in _files(source):
            _add(found, file)
    if not found.logs and not found.dumps:
        raise ConfigError(
            f"{shown}: expected JSON lines of verl's file logger (step and data), or dumps of "
            "rollouts or validation samples (input, output and score), got none; set "
            "VERL_FILE_LOGGER_PATH with trainer.logger=[file], trainer.rollout_data_dir or "
            "trainer.validation_data_dir"
        )
    runs = _runs(found, root)
    lost = _assign(found, runs, root)
    for run in runs:
        run.rollouts.sort(key=_step_order)
        run.validation.sort(key=_step_order)
    remarks = []
    if found.unread:
        remarks.append(
            f"left out {counted(f'{len(found.unread):,}', 'file')} without a readable line, such "
            f"as {printable_line(found.unread[0].relative_to(root).as_posix())}"
        )
    if lost:
        remarks.append(
            f"left out {counted(f'{len(lost):,}', 'folder')} of no single run, such as "
            f"{printable_line(_relative(lost[0], root))}"
        )
    return runs, remarks


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
            if not deep
            and (name == ".hydra" or not name.startswith("."))
            and not _CHECKPOINTS.fullmatch(name)
        )
        for name in sorted(names):
            count += 1
            if count > _MOST_FILES:
                raise ConfigError(
                    f"{printable_line(str(folder))}: expected at most {_MOST_FILES:,} files, got "
                    "more; name the folder of one run"
                )
            if name.endswith(_ENDINGS) or (here.name == ".hydra" and name == "config.yaml"):
                yield here / name


def _add(found: _Found, file: Path) -> None:
    if file.name == "config.yaml":
        found.settings.append(file)
        return
    row = _first_row(file)
    kind = None if row is None else _kind(file, row)
    if row is None and file.suffix == ".jsonl":
        found.unread.append(file)
    elif kind == LOG:
        found.logs.append(file)
    elif kind is not None:
        found.dumps.setdefault((file.parent, kind), []).append(file)


def _kind(file: Path, row: Mapping[str, Any]) -> str | None:
    """Recognise a file by the first of its lines that can be read."""
    if isinstance(row.get("data"), dict) and "step" in row:
        return LOG
    if "score" in row and ("input" in row or "output" in row):
        # Validation writes its scores a second time, as `reward`; training does not.
        named = _VALIDATION.search(file.parent.name) is not None
        return VALIDATION if "reward" in row or named else ROLLOUTS
    return None


def _first_row(file: Path) -> dict[str, Any] | None:
    try:
        with open_regular(file.resolve()) as stream:
            head = stream.read(_HEAD)
    except OSError:
        return None
    for line in head.split(b"\n")[:8]:
        try:
            row = json.loads(line)
        except (ValueError, RecursionError):
            continue
        if isinstance(row, dict):
            return row
    return None


def _runs(found: _Found, root: Path) -> list[VerlFiles]:
    """Return a run for each log; without logs, for each folder that holds dumps."""
    if found.logs:
        # A single log names its run by its folder; logs side by side by their own names.
        places = [log.parent for log in found.logs]
        return [
            VerlFiles(_relative(log if places.count(log.parent) > 1 else log.parent, root), log=log)
            for log in found.logs
        ]
    homes = {_home(folder, kind, found, root) for folder, kind in found.dumps}
    return [VerlFiles(_relative(home, root)) for home in sorted(homes)]


def _home(folder: Path, kind: str, found: _Found, root: Path) -> Path:
    """Return the folder of the run that a dump belongs to.

    It is the folder above, unless dumps of the same kind lie side by side: then each is a run.
    """
    if folder == root:
        return root
    beside = [f for f, other in found.dumps if f.parent == folder.parent and other == kind]
    return folder.parent if len(beside) == 1 else folder


def _assign(found: _Found, runs: list[VerlFiles], root: Path) -> list[Path]:
    """Give dumps and settings to their runs; returns folders that belong to no single one."""
    lost = []
    for (folder, kind), files in found.dumps.items():
        run = _owner(folder, runs, root)
        # Two dumps of one kind in a run are of two trainings; no rule says which is the log's.
        if run is None or getattr(run, kind):
            lost.append(folder)
        else:
            getattr(run, kind).extend(files)
    for path in found.settings:
        run = _owner(path.parent.parent, runs, root)
        if run is None:
            lost.append(path.parent.parent)
        else:
            # The last is of the last start of a run that was resumed.
            run.settings = path
    return lost


def _owner(place: Path, runs: list[VerlFiles], root: Path) -> VerlFiles | None:
    """Return the only run that shares the nearest folder above, or has a name in the path."""
    if len(runs) == 1:
        return runs[0]
    homes = [(run, _place(run, root)) for run in runs]
    for above in (place, *place.parents):
        sharing = [run for run, home in homes if home.is_relative_to(above)]
        if sharing:
            if len(sharing) == 1:
                return sharing[0]
            names = set(place.relative_to(root).parts) if place.is_relative_to(root) else set()
            named = [run for run in sharing if run.log is not None and run.log.stem in names]
            return named[0] if len(named) == 1 else None
        if above == root:
            break
    return None


def _place(run: VerlFiles, root: Path) -> Path:
    return run.log.parent if run.log is not None else root / run.source


def _relative(path: Path, root: Path) -> str:
    relative = path.relative_to(root) if path.is_relative_to(root) else path
    if relative.suffix in _ENDINGS:
        relative = relative.with_suffix("")
    return relative.as_posix()


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
        return _lookup(self.theirs, key)

    def config(self) -> dict[str, Any]:
        """Return the config of the run: our keys, and those of theirs that have none of ours."""
        table = _table()
        config = {
            key: value
            for key, value in self.theirs.items()
            if key not in table["of_one_run"] and key not in _our_nodes(table)
        }
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


def _our_nodes(table: Mapping[str, Any]) -> set[str]:
    return {"estimator", "backend", "rows"} | {key.partition(".")[0] for key in table["keys"]}


def _lookup(node: Any, key: str) -> Any:
    for part in key.split("."):
        if not isinstance(node, Mapping) or part not in node:
            return None
        node = node[part]
    return node


def _is_known(value: Any) -> bool:
    """Whether a setting has a value: null and -1 stand for none, ${...} for one elsewhere."""
    if isinstance(value, str):
        return bool(value) and "${" not in value
    return isinstance(value, (int, float)) and not isinstance(value, bool) and value >= 0


def _without(node: Mapping[str, Any], keys: frozenset[str], above: str = "") -> dict[str, Any]:
    """Return settings without some keys, seeds and names of classes."""
    return dict(_kept(node, keys, above))


def _kept(node: Mapping[Any, Any], keys: frozenset[str], above: str) -> Iterator[tuple[str, Any]]:
    for key, value in node.items():
        path = f"{above}{key}"
        if path in keys or key == "_target_" or str(key) == "seed" or str(key).endswith("_seed"):
            continue
        yield str(key), _without(value, keys, f"{path}.") if isinstance(value, Mapping) else value
