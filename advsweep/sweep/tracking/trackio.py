"""Trackio (https://github.com/gradio-app/trackio): local projects, without an account."""

from __future__ import annotations

import os
import re
import uuid
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar, Self

from advsweep.components import Plain, option
from advsweep.errors import ConfigError
from advsweep.local_files import outside_working_folder
from advsweep.printable import printable_line
from advsweep.sweep.tracking.base import (
    Rows,
    Track,
    Tracking,
    error_text,
    group_of,
    identifiers,
    printable_config,
    run_key,
    run_tags,
)

if TYPE_CHECKING:
    from advsweep.store import RunRecord

PROJECT = "advsweep"

_ROWS = 1000  # written in one transaction

_PROJECT = re.compile(r"[A-Za-z0-9_-]{1,64}")

_RESERVED = frozenset({"project", "run", "timestamp", "step", "time", "metrics"})
"""Names of trackio's own; it puts `__` before a metric of such a name, and so do we."""

_NAMESPACE = uuid.UUID("6f1e1b1a-5a34-5d0b-9d43-2f0b8a3f0f57")


@dataclass(kw_only=True)
class TrackioTracking(Tracking):
    """Runs of a project in a local folder: `trackio show --project advsweep` shows them.

    Seeds of a configuration are a group. A run's id follows from its identity and attempt. Rows
    are written through trackio's storage and not through `trackio.init`, which has one run per
    process, starts a thread for each, and reports errors as warnings.
    """

    name: ClassVar[str] = "trackio"
    package: ClassVar[str | None] = "trackio"

    project: str = option(PROJECT, help="letters, digits, _ and -")
    tags: tuple[str, ...] = option((), help="tags of every run, beside the names of its sweeps")
    directory: str | None = option(
        None, help="the folder of the projects; null: $TRACKIO_DIR, else trackio's own"
    )

    def __post_init__(self) -> None:
        super().__post_init__()
        # trackio drops other characters from the name of the project's file.
        if not _PROJECT.fullmatch(self.project):
            raise ConfigError(
                f"tracking.project: expected 1 to 64 letters, digits, _ or -, got {self.project!r}"
            )

    def in_folder(self, folder: Path) -> Self:
        return replace(self, directory=str(folder.absolute()))

    def open(self, record: RunRecord) -> Track:
        folder = None if self.directory is None else Path(self.directory).absolute()
        return TrackioTrack(_load_storage(folder), self, record)


class TrackioTrack(Track):
    """One run in a project's database.

    Args:
        storage: `trackio.SQLiteStorage`.
    """

    def __init__(self, storage: Any, tracking: TrackioTracking, record: RunRecord) -> None:
        self._storage = storage
        self._run = {
            "project": tracking.project,
            "run": record.directory.name,
            "run_id": run_key(record),
        }
        self._tags = tracking.tags
        self.last_step = max((row["step"] for row in storage.get_logs(**self._run)), default=-1)
        # The config is written with the first rows, so that a run in training shows it.
        self._config: Plain | None = self._shown_config(record)

    def log(self, rows: Rows) -> None:
        key = self._run["run_id"]
        for start in range(0, len(rows), _ROWS):
            some = [
                (step, {_shown_name(name): value for name, value in values.items()})
                for step, values in rows[start : start + _ROWS]
            ]
            self._storage.bulk_log(
                **self._run,
                metrics_list=[row for _, row in some],
                steps=[step for step, _ in some],
                config=self._config,
                # The database ignores a row whose id it has.
                log_ids=[uuid.uuid5(_NAMESPACE, f"{key} {s} {sorted(r)}").hex for s, r in some],
            )
            self._config = None

    def close(self, record: RunRecord, summaries: Mapping[str, float]) -> None:
        state: Plain = {"status": record.status.value}
        if error := error_text(record):
            state["error"] = error
        self._config = self._shown_config(record) | state
        # A run without rows is not shown, so there is one at the end even without summaries.
        self.log([(record.step, summaries)])

    def _shown_config(self, record: RunRecord) -> Plain:
        tags = {"tags": run_tags(record, self._tags)}
        config = printable_config(record) | identifiers(record) | tags
        # trackio reserves keys that begin with an underscore.
        config = {f"config{key}" if key[:1] == "_" else key: v for key, v in config.items()}
        own = {  # what `trackio.init` adds
            "_Username": None,
            "_Created": record.created.isoformat(),
            "_Group": group_of(record),
        }
        return config | own


def _shown_name(name: str) -> str:
    name = printable_line(name)
    return f"__{name}" if name in _RESERVED or name.startswith("__") else name


def _load_storage(folder: Path | None) -> Any:
    """Imports trackio, which takes its folder from the environment, once per process.

    Raises:
        ConfigError: this process has imported it with another folder.
    """
    before = os.environ.get("TRACKIO_DIR")
    if folder is not None:
        os.environ["TRACKIO_DIR"] = str(folder)
    try:
        with outside_working_folder():
            from trackio import utils
            from trackio.sqlite_storage import SQLiteStorage
    finally:
        if before is None:
            os.environ.pop("TRACKIO_DIR", None)
        else:
            os.environ["TRACKIO_DIR"] = before
    loaded = Path(utils.TRACKIO_DIR)
    if folder is not None and loaded != folder:
        raise ConfigError(
            f"tracking.directory: trackio has one folder per process; this one has {loaded}, not "
            f"{folder}; `advsweep export --to trackio` in another process sends to it"
        )
    return SQLiteStorage
