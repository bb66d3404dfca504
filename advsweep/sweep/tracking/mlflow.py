"""MLflow (https://mlflow.org): a local database, or a tracking server."""

from __future__ import annotations

import hashlib
import json
import logging
import math
import os
import re
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar, Self
from urllib.parse import urlsplit

from advsweep.components import leaves, option
from advsweep.errors import ConfigError
from advsweep.local_files import make_private_folder, outside_working_folder
from advsweep.store import Status
from advsweep.sweep.tracking import base

if TYPE_CHECKING:
    from datetime import datetime

    from advsweep.store import RunRecord

# The tag that finds a run again; MLflow makes the ids of runs itself.
RUN_TAG = "advsweep.run"

_METRICS, _PARAMS = 1000, 100  # the most of one request
_NAME_CHARACTERS, _TEXT_CHARACTERS = 200, 5000  # below the limits of its databases
_SQLITE = "sqlite:///"

_ENDS = {Status.DONE: "FINISHED", Status.PRUNED: "FINISHED", Status.INTERRUPTED: "KILLED"}

_NOT_IN_NAMES = re.compile(r"[^\w.\- /]", re.ASCII)


@dataclass(kw_only=True)
class MlflowTracking(base.Tracking):
    """Runs of an experiment: `mlflow ui --backend-store-uri sqlite:///.../mlflow.db` shows them.

    A run is found again by a tag made of its identity and attempt. Config keys are parameters,
    sweeps and identity are tags. MLflow allows fewer characters in names: `pass@8` is
    `pass_at_8` there. Usage statistics that MLflow would send to its makers are switched off.
    """

    name: ClassVar[str] = "mlflow"
    package: ClassVar[str | None] = "mlflow"

    uri: str | None = option(
        None,
        help="a tracking server, or sqlite:///FILE; null: $MLFLOW_TRACKING_URI, else "
        "`mlflow/mlflow.db`, beside the runs' own folders",
    )
    experiment: str | None = option(
        None, help="null: $MLFLOW_EXPERIMENT_NAME, else advsweep; it is made if missing"
    )
    tags: tuple[str, ...] = option((), help="tags of every run, beside the names of its sweeps")

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.uri is not None and "@" in urlsplit(self.uri).netloc:
            raise ConfigError(
                "tracking.uri: expected an address without a user or password; set "
                "MLFLOW_TRACKING_USERNAME and MLFLOW_TRACKING_PASSWORD, or MLFLOW_TRACKING_URI"
            )

    def in_folder(self, folder: Path) -> Self:
        return replace(self, uri=f"{_SQLITE}{folder.absolute() / 'mlflow.db'}")

    def address(self, runs: Path) -> str:
        """Return the address of the server or database, given the folder of all runs."""
        given = self.uri or os.environ.get("MLFLOW_TRACKING_URI")
        return given or f"{_SQLITE}{runs / 'mlflow' / 'mlflow.db'}"

    def open(self, record: RunRecord) -> base.Track:
        address = self.address(record.directory.parent)
        os.environ.setdefault("MLFLOW_DISABLE_TELEMETRY", "true")
        with outside_working_folder():
            from mlflow import MlflowClient
        # It reports the creation of each table of a new database.
        logging.getLogger("mlflow").setLevel(logging.WARNING)
        artifacts = None
        if address.startswith(_SQLITE):
            if re.search("[?#%]", address):
                raise ConfigError(
                    f"tracking.uri: expected a path without ?, # and %, got {address}"
                )
            folder = Path(address.removeprefix(_SQLITE)).absolute().parent
            make_private_folder(folder)
            # MLflow's own default is a folder below the working folder.
            artifacts = (folder / "artifacts").as_uri()
        client = MlflowClient(tracking_uri=address)
        name = self.experiment or os.environ.get("MLFLOW_EXPERIMENT_NAME") or base.PROJECT
        if found := client.get_experiment_by_name(name):
            return MlflowTrack(client, found.experiment_id, self.tags, record)
        made = client.create_experiment(name, artifact_location=artifacts)
        return MlflowTrack(client, made, self.tags, record)


class MlflowTrack(base.Track):
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
        self._metric = Metric
        key = base.run_key(record)
        found = client.search_runs([experiment_id], f"tags.`{RUN_TAG}` = '{key}'", max_results=1)
        if found:
            self._id = found[0].info.run_id
            histories = (client.get_metric_history(self._id, n) for n in found[0].data.metrics)
            steps = [metric.step for history in histories for metric in history]
            self.last_step = max(steps, default=-1)
            return
        own = {
            **base.identifiers(record),
            "group": base.group_of(record),
            "seed": record.seed,
            "estimator": record.estimator,
            "backend": record.backend,
            "tags": json.dumps(base.run_tags(record, tags)),
        }
        made = client.create_run(
            experiment_id,
            start_time=_milliseconds(record.started or record.created),
            run_name=record.directory.name,
            tags={RUN_TAG: key, **{f"advsweep.{name}": _cut(str(v)) for name, v in own.items()}},
        )
        self._id = made.info.run_id
        params = [
            Param(mlflow_name(name), _cut(value if isinstance(value, str) else json.dumps(value)))
            for name, value in leaves(record.config)
        ]
        for start in range(0, len(params), _PARAMS):
            client.log_batch(self._id, params=params[start : start + _PARAMS])

    def log(self, rows: base.Rows) -> None:
        now = round(time.time() * 1000)  # the store has no times of steps
        metrics = [
            self._metric(mlflow_name(name), value, now, step)
            for step, values in rows
            for name, value in values.items()
        ]
        for start in range(0, len(metrics), _METRICS):
            self._client.log_batch(self._id, metrics=metrics[start : start + _METRICS])

    def close(self, record: RunRecord, summaries: Mapping[str, float]) -> None:
        self.log([(record.step, summaries)])
        self._client.set_tag(self._id, "advsweep.status", record.status.value)
        if record.error:
            self._client.set_tag(self._id, "advsweep.error", _cut(record.error))
        end = None if record.finished is None else _milliseconds(record.finished)
        self._client.set_terminated(self._id, _ENDS.get(record.status, "FAILED"), end)


def mlflow_name(name: str) -> str:
    """Return the name of a metric or parameter in MLflow.

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
