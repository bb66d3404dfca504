"""MLflow (https://mlflow.org): a local database, or a tracking server."""

from __future__ import annotations

import hashlib
import json
import logging
import math
import os
import re
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar, Self, TypeVar
from urllib.parse import urlsplit

from advsweep.components import leaves, option
from advsweep.errors import ConfigError
from advsweep.local_files import make_private_folder, outside_working_folder
from advsweep.store import Status
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
    from datetime import datetime

    from advsweep.store import RunRecord

T = TypeVar("T")

EXPERIMENT = "advsweep"
RUN_TAG = "advsweep.run"
"""The tag that finds a run again; MLflow makes the ids of runs itself."""

_METRICS, _PARAMS = 1000, 100  # the most of one request
_NAME_CHARACTERS, _TEXT_CHARACTERS = 200, 5000  # below the limits of its databases

_ENDS = {Status.DONE: "FINISHED", Status.PRUNED: "FINISHED", Status.INTERRUPTED: "KILLED"}

_NOT_IN_NAMES = re.compile(r"[^\w.\- /]", re.ASCII)
_NOT_IN_URLS = re.compile(r"[?#%]")


@dataclass(kw_only=True)
class MlflowTracking(Tracking):
    """Runs of an experiment: `mlflow ui --backend-store-uri sqlite:///.../mlflow.db` shows them.

    A run is found again by a tag made of its identity and attempt. Config keys are parameters,
    sweeps and identity are tags. MLflow allows fewer characters in names: `pass@8` is
    `pass_at_8` there. Usage statistics that MLflow would send to its makers are switched off.
    """

    name: ClassVar[str] = "mlflow"
    package: ClassVar[str | None] = "mlflow"

    uri: str | None = option(
        None, help="a tracking server; null: $MLFLOW_TRACKING_URI, else a database in `directory`"
    )
    experiment: str | None = option(
        None, help="null: $MLFLOW_EXPERIMENT_NAME, else advsweep; it is made if missing"
    )
    tags: tuple[str, ...] = option((), help="tags of every run, beside the names of its sweeps")
    directory: str | None = option(
        None, help="the folder of mlflow.db, if uri is null; null: `mlflow`, beside the runs' own"
    )

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.uri is not None and "@" in urlsplit(self.uri).netloc:
            raise ConfigError(
                "tracking.uri: expected an address without a user or password, as it is stored "
                "with the sweep; set MLFLOW_TRACKING_USERNAME and MLFLOW_TRACKING_PASSWORD, or "
                "MLFLOW_TRACKING_URI"
            )
        if self.uri is not None and self.directory is not None:
            raise ConfigError("tracking: expected uri or directory, got both")
        if self.directory is not None and _NOT_IN_URLS.search(self.directory):
            raise ConfigError(
                f"tracking.directory: expected a path without ?, # and %, got {self.directory!r}"
            )

    def in_folder(self, folder: Path) -> Self:
        return replace(self, uri=None, directory=str(folder.absolute()))

    def open(self, record: RunRecord) -> Track:
        address, folder = self._address(record.directory.parent)
        if folder is not None:
            if _NOT_IN_URLS.search(str(folder)):
                raise ConfigError(f"tracking: no place for mlflow.db: {folder} has ?, # or %")
            make_private_folder(folder)
        client = _load_client(address)
        return MlflowTrack(client, self._experiment_id(client, folder), self.tags, record)

    def _address(self, runs: Path) -> tuple[str, Path | None]:
        """Returns the address, and the folder of the database if it is one of ours."""
        given = self.uri
        if given is None and self.directory is None:
            given = os.environ.get("MLFLOW_TRACKING_URI")
        if given:
            return given, None
        folder = runs / "mlflow" if self.directory is None else Path(self.directory).absolute()
        return f"sqlite:///{folder / 'mlflow.db'}", folder

    @property
    def _experiment(self) -> str:
        return self.experiment or os.environ.get("MLFLOW_EXPERIMENT_NAME") or EXPERIMENT

    def _experiment_id(self, client: Any, folder: Path | None) -> str:
        found = client.get_experiment_by_name(self._experiment)
        if found is None:
            # MLflow's own default is a folder below the working folder.
            place = None if folder is None else (folder / "artifacts").as_uri()
            made: str = client.create_experiment(self._experiment, artifact_location=place)
            return made
        known: str = found.experiment_id
        return known


class MlflowTrack(Track):
    """One run of an experiment.

    Args:
        client: an `mlflow.MlflowClient`.
        tags: of the user.
    """

    def __init__(
        self, client: Any, experiment_id: str, tags: Sequence[str], record: RunRecord
    ) -> None:
        from mlflow.entities import Metric, Param

        self._client = client
        self._metric, self._param = Metric, Param
        key = run_key(record)
        found = client.search_runs([experiment_id], f"tags.`{RUN_TAG}` = '{key}'", max_results=1)
        if found:
            self._id = found[0].info.run_id
            histories = (client.get_metric_history(self._id, n) for n in found[0].data.metrics)
            steps = [metric.step for history in histories for metric in history]
            self.last_step = max(steps, default=-1)
            return
        own = {
            **identifiers(record),
            "group": group_of(record),
            "seed": record.seed,
            "estimator": record.estimator,
            "backend": record.backend,
            "tags": json.dumps(run_tags(record, tags)),
        }
        made = client.create_run(
            experiment_id,
            start_time=_milliseconds(record.started or record.created),
            run_name=record.directory.name,
            tags={RUN_TAG: key, **{f"advsweep.{name}": _cut(str(v)) for name, v in own.items()}},
        )
        self._id = made.info.run_id
        params = {
            mlflow_name(name): _cut(value if isinstance(value, str) else json.dumps(value))
            for name, value in leaves(printable_config(record))
        }
        for some in _portions([*params.items()], _PARAMS):
            client.log_batch(self._id, params=[Param(name, value) for name, value in some])

    def log(self, rows: Rows) -> None:
        now = round(time.time() * 1000)  # the store has no times of steps
        metrics = [
            self._metric(mlflow_name(name), value, now, step)
            for step, values in rows
            for name, value in values.items()
        ]
        for some in _portions(metrics, _METRICS):
            self._client.log_batch(self._id, metrics=some)

    def close(self, record: RunRecord, summaries: Mapping[str, float]) -> None:
        self.log([(record.step, summaries)])
        self._client.set_tag(self._id, "advsweep.status", record.status.value)
        if error := error_text(record):
            self._client.set_tag(self._id, "advsweep.error", _cut(error))
        end = None if record.finished is None else _milliseconds(record.finished)
        self._client.set_terminated(self._id, _ENDS.get(record.status, "FAILED"), end)


def mlflow_name(name: str) -> str:
    """Returns the name of a metric or parameter in MLflow.

    Letters, digits, `_`, `-`, `.`, spaces and `/` stay, `@` becomes `_at_`. If anything else is
    replaced, or the name itself has `_at_`, a hash keeps names apart. No part of the result is
    `.`, `..` or empty.

    >>> mlflow_name("pass@8")
    'pass_at_8'
    """
    readable = name.replace("@", "_at_")
    parts = _NOT_IN_NAMES.sub("_", readable).split("/")
    safe = "/".join(part if part.strip(". ") else "_" for part in parts)[:_NAME_CHARACTERS]
    if safe == readable and "_at_" not in name:
        return safe
    digest = hashlib.sha256(name.encode("utf-8", "surrogatepass")).hexdigest()[:8]
    return f"{safe.rstrip('/')}-{digest}"


def _cut(text: str) -> str:
    return text if len(text) <= _TEXT_CHARACTERS else f"{text[: _TEXT_CHARACTERS - 3]}..."


def _milliseconds(moment: datetime) -> int:
    return math.floor(moment.timestamp() * 1000)


def _portions(items: Sequence[T], size: int) -> Iterator[Sequence[T]]:
    for start in range(0, len(items), size):
        yield items[start : start + size]


def _load_client(address: str) -> Any:
    os.environ.setdefault("MLFLOW_DISABLE_TELEMETRY", "true")
    with outside_working_folder():
        from mlflow import MlflowClient
    # It reports the creation of each table of a new database.
    logging.getLogger("mlflow").setLevel(logging.WARNING)
    return MlflowClient(tracking_uri=address)
