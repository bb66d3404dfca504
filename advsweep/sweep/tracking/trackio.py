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
from advsweep.sweep.tracking import base

if TYPE_CHECKING:
    from advsweep.store import RunRecord

# Names of trackio's own; it puts `__` before a metric of such a name, and so do we.
_RESERVED = frozenset({"project", "run", "timestamp", "step", "time", "metrics"})

_NAMESPACE = uuid.UUID("6f1e1b1a-5a34-5d0b-9d43-2f0b8a3f0f57")


@dataclass(kw_only=True)
class TrackioTracking(base.Tracking):
    """Runs of a project in a local folder: `trackio show --project advsweep` shows them.

    Seeds of a configuration are a group. A run's id follows from its identity and attempt. Rows
    are written through trackio's storage and not through `trackio.init`, which has one run per
    process, starts a thread for each, and reports errors as warnings.
    """

    name: ClassVar[str] = "trackio"
    package: ClassVar[str | None] = "trackio"

    project: str = option(base.PROJECT, help="letters, digits, _ and -")
    tags: tuple[str, ...] = option((), help="tags of every run, beside the names of its sweeps")
    directory: str | None = option(
        None, help="the folder of the projects; null: $TRACKIO_DIR, else trackio's own"
    )

    def __post_init__(self) -> None:
        super().__post_init__()
        # trackio drops other characters from the name of the project's file.
        if not re.fullmatch(r"[A-Za-z0-9_-]{1,64}", self.project):
            raise ConfigError(
                f"tracking.project: expected 1 to 64 letters, digits, _ or -, got {self.project!r}"
            )

    def in_folder(self, folder: Path) -> Self:
        return replace(self, directory=str(folder.absolute()))

    def open(self, record: RunRecord) -> base.Track:
        folder = None if self.directory is None else Path(self.directory).absolute()
        return TrackioTrack(_load_storage(folder), self, record)


class TrackioTrack(base.Track):
    """One run in a project's database.

    Args:
        storage: `trackio.SQLiteStorage`.
    """

    def __init__(self, storage: Any, tracking: TrackioTracking, record: RunRecord) -> None:
        self._storage = storage
        self._key = base.run_key(record)
        name = record.directory.name
        self._run = {"project": tracking.project, "run": name, "run_id": self._key}
        self.last_step = max((row["step"] for row in storage.get_logs(**self._run)), default=-1)
        shown = (
            record.config
            | base.identifiers(record)
            | {"tags": base.run_tags(record, tracking.tags)}
        )
        # trackio reserves keys that begin with an underscore; these it adds in `trackio.init`.
        added = {
            "_Username": None,
            "_Created": record.created.isoformat(),
            "_Group": base.group_of(record),
        }
        self._config: Plain = {f"config{k}" if k[:1] == "_" else k: v for k, v in shown.items()}
        self._config |= added

    def log(self, rows: base.Rows) -> None:
        shown = [
            (step, {_shown_name(name): value for name, value in values.items()})
            for step, values in rows
        ]
        ids = [uuid.uuid5(_NAMESPACE, f"{self._key} {s} {sorted(r)}").hex for s, r in shown]
        self._storage.bulk_log(
            **self._run,
            metrics_list=[row for _, row in shown],
            steps=[step for step, _ in shown],
            config=self._config,
            log_ids=ids,  # the database ignores a row whose id it has
        )

    def close(self, record: RunRecord, summaries: Mapping[str, float]) -> None:
        self._config["status"] = record.status.value
        if record.error:
            self._config["error"] = record.error
        # A run without rows is not shown, so there is one at the end even without summaries.
        self.log([(record.step, summaries)])


def _shown_name(name: str) -> str:
    return f"__{name}" if name in _RESERVED or name.startswith("__") else name


def _load_storage(folder: Path | None) -> Any:
    """Import trackio, which takes its folder from the environment, once per process.

    Raises:
        ConfigError: this process has imported it with another folder.
    """
    if folder is not None:
        os.environ["TRACKIO_DIR"] = str(folder)
    with outside_working_folder():
        from trackio import utils
        from trackio.sqlite_storage import SQLiteStorage
    loaded = Path(utils.TRACKIO_DIR)
    if folder is not None and loaded != folder:
        raise ConfigError(
            f"tracking.directory: trackio has one folder per process; this one has {loaded}, not "
            f"{folder}; `advsweep export --to trackio` in another process sends to it"
        )
    return SQLiteStorage
