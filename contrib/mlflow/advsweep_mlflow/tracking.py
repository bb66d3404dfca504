"""MLflow (https://mlflow.org): a local database, or a tracking server."""

from __future__ import annotations

import hashlib
import json
import logging
import os
import re
import time
import warnings
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar, Self
from urllib.parse import SplitResult, urlsplit

from advsweep.components import leaves, option
from advsweep.errors import ConfigError
from advsweep.local_files import make_private_folder, outside_working_folder
from advsweep.printable import redacted
from advsweep.store import Status
from advsweep.sweep.tracking import base

if TYPE_CHECKING:
    from datetime import datetime

    from advsweep.store import RunRecord

# The tag by which a run is found again; MLflow makes the ids of runs itself.
RUN_TAG = "advsweep.run"

# The last step whose metrics are complete, written with them in one request.
LAST_STEP_TAG = "advsweep.last_step"

# The most metrics and parameters of one request.
_MOST_METRICS = 1000
_MOST_PARAMS = 100

# Below the limits of MLflow's databases.
_NAME_CHARACTERS = 200
_TEXT_CHARACTERS = 5000

_SQLITE = "sqlite:///"
_FOLDERS = ("", "file")

# Seconds within which a server must answer before anything is trained.
_ANSWER_SECONDS = 10

# MLflow's states of the runs that have ended; any other may still go on.
_ENDS = {
    Status.DONE: "FINISHED",
    Status.PRUNED: "FINISHED",
    Status.INTERRUPTED: "KILLED",
    Status.FAILED: "FAILED",
}

_NOT_IN_NAMES = re.compile(r"[^\w.\- /]", re.ASCII)


@dataclass(kw_only=True)
class MlflowTracking(base.Tracking):
    """Runs of an experiment: `mlflow ui --backend-store-uri sqlite:///.../mlflow.db` shows them.

    A run is found again by a tag made of its identity and attempt. Config keys are parameters;
    sweeps, identity and state are tags. MLflow allows fewer characters in names: `pass@8` is
    `pass_at_8` there. Usage statistics that MLflow would send to its makers are switched off.
    """

    name: ClassVar[str] = "mlflow"

    uri: str | None = option(
        None,
        help="a tracking server, or sqlite:///FILE; null: $MLFLOW_TRACKING_URI, else "
        "`mlflow/mlflow.db`, beside the runs' folders",
    )
    experiment: str | None = option(
        None, help="null: $MLFLOW_EXPERIMENT_NAME, else advsweep; it is made if missing"
    )
    tags: tuple[str, ...] = option((), help="tags of every run, beside the names of its sweeps")

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.uri is not None and "@" in _split_address(self.uri).netloc:
            raise ConfigError(
                "tracking.uri: expected an address without a user or password; set "
                "MLFLOW_TRACKING_USERNAME and MLFLOW_TRACKING_PASSWORD, or MLFLOW_TRACKING_URI"
            )

    def in_folder(self, folder: Path) -> Self:
        return replace(self, uri=f"{_SQLITE}{folder.absolute() / 'mlflow.db'}")

    def address(self, runs: Path) -> str:
        """Return the address of the server or database.

        Args:
            runs: the folder of all runs.
        """
        chosen = self.uri or os.environ.get("MLFLOW_TRACKING_URI")
        return chosen or f"{_SQLITE}{runs / 'mlflow' / 'mlflow.db'}"

    def check(self) -> None:
        """Check that the address is one that MLflow writes to, and that a server answers there.

        Raises:
            ConfigError: it is not, or none does.
        """
        address = self.address(Path())
        parts = _split_address(address)
        if parts.scheme in _FOLDERS and os.environ.get("MLFLOW_ALLOW_FILE_STORE") != "true":
            raise ConfigError(
                f"tracking.uri: expected a server (http://...) or a database (sqlite:///FILE), got "
                f"'{redacted(address)}': MLflow writes to no plain folders any more"
            )
        if parts.scheme == "sqlite" and re.search("[?#%]", address):
            raise ConfigError(f"tracking.uri: expected a path without ?, # and %, got '{address}'")
        if parts.scheme in ("http", "https"):
            _check_server(address)

    def open(self, record: RunRecord) -> base.Track:
        address = self.address(record.directory.parent)
        os.environ.setdefault("MLFLOW_DISABLE_TELEMETRY", "true")
        # Results in JSON are on stdout.
        os.environ["MLFLOW_SUPPRESS_PRINTING_URL_TO_STDOUT"] = "true"
        with outside_working_folder():
            from mlflow import MlflowClient
        # It reports the creation of each table of a new database, and what newer releases of its
        # dependencies say of its code.
        logging.getLogger("mlflow").setLevel(logging.WARNING)
        warnings.filterwarnings("ignore", module=r"mlflow\.")
        artifacts = None
        if address.startswith(_SQLITE):
            folder = Path(address.removeprefix(_SQLITE)).absolute().parent
            make_private_folder(folder)
            # MLflow's own default is a folder below the working folder.
            artifacts = (folder / "artifacts").as_uri()
        client = MlflowClient(tracking_uri=address)
        name = self.experiment or os.environ.get("MLFLOW_EXPERIMENT_NAME") or base.PROJECT
        experiment_id = _find_or_create_experiment(client, name, artifacts)
        return MlflowTrack(client, experiment_id, self.tags, record)


def _split_address(address: str) -> SplitResult:
    """Return the parts of an address.

    Raises:
        ConfigError: it is not a URL. The address may hold a password and is not quoted.
    """
    try:
        return urlsplit(address)
    except ValueError:
        raise ConfigError(
            "tracking.uri: expected a URL such as http://HOST:5000 or sqlite:///FILE, got a text "
            "that is none; look at its brackets and letters"
        ) from None


def _check_server(address: str) -> None:
    """Check that something answers at an address.

    Raises:
        ConfigError: nothing does.
    """
    import requests

    parts = _split_address(address)
    shown = f"{parts.scheme}://{parts.netloc.rpartition('@')[2]}"
    try:
        requests.head(address, timeout=_ANSWER_SECONDS)
    except requests.exceptions.SSLError:
        return  # MLflow's settings say which certificates count
    except requests.exceptions.Timeout:
        reason = f"it did not answer within {_ANSWER_SECONDS} s"
    except requests.exceptions.ConnectionError:
        reason = "nobody answers there"
    except requests.exceptions.RequestException as error:
        reason = redacted(str(error))
    else:
        return
    raise ConfigError(
        f"tracking.uri: expected an MLflow server at {shown}, but {reason}; start it, or train "
        "without tracking=mlflow and send the runs later with `advsweep export SWEEP --to mlflow`"
    )


def _find_or_create_experiment(client: Any, name: str, artifacts: str | None) -> str:
    """Return the id of an experiment, which another command may make at the same time."""
    from mlflow.exceptions import MlflowException

    experiment = client.get_experiment_by_name(name)
    if experiment is not None:
        return str(experiment.experiment_id)
    try:
        return str(client.create_experiment(name, artifact_location=artifacts))
    except MlflowException:
        experiment = client.get_experiment_by_name(name)
        if experiment is None:
            raise
        return str(experiment.experiment_id)


class MlflowTrack(base.Track):
    """One run of an experiment.

    Args:
        client: an `mlflow.MlflowClient`.
        tags: of the user.
    """

    def __init__(
        self, client: Any, experiment_id: str, tags: tuple[str, ...], record: RunRecord
    ) -> None:
        self._client = client
        key = base.run_key(record)
        earlier = client.search_runs([experiment_id], f"tags.`{RUN_TAG}` = '{key}'", max_results=1)
        sent_params: Mapping[str, str] = {}
        if earlier:
            run = earlier[0]
            self._id = run.info.run_id
            self.last_step = int(run.data.tags.get(LAST_STEP_TAG, -1))
            sent_params = run.data.params
            if record.status not in _ENDS and run.info.status != "RUNNING":
                client.update_run(self._id, status="RUNNING")
        else:
            self._id = _create_run(client, experiment_id, tags, record)
        self._log_params(record, sent_params)

    def _log_params(self, record: RunRecord, sent: Mapping[str, str]) -> None:
        """Send the config keys that MLflow lacks: it refuses other values of those that it has."""
        from mlflow.entities import Param

        params = []
        for key, value in leaves(record.config):
            name = mlflow_name(key)
            if name not in sent:
                text = value if isinstance(value, str) else json.dumps(value)
                params.append(Param(name, _shorten(text)))
        for start in range(0, len(params), _MOST_PARAMS):
            self._client.log_batch(self._id, params=params[start : start + _MOST_PARAMS])

    def log(self, rows: base.Rows) -> None:
        batch: list[tuple[int, str, float]] = []
        for step, values in rows:
            # A request ends with a step, unless a step is too large for one.
            if batch and len(batch) + len(values) > _MOST_METRICS:
                self._send(batch)
                batch = []
            batch += [(step, name, value) for name, value in values.items()]
        self._send(batch)

    def _send(self, points: list[tuple[int, str, float]]) -> None:
        """Send the metrics of whole steps."""
        from mlflow.entities import RunTag

        if not points:
            return
        now = _milliseconds(time.time())  # the store has no times of steps
        *full, rest = [points[i : i + _MOST_METRICS] for i in range(0, len(points), _MOST_METRICS)]
        for part in full:
            self._client.log_batch(self._id, metrics=_metrics(part, now))
        tag = RunTag(LAST_STEP_TAG, str(points[-1][0]))
        self._client.log_batch(self._id, metrics=_metrics(rest, now), tags=[tag])

    def close(self, record: RunRecord, summaries: Mapping[str, float]) -> None:
        finished = None if record.finished is None else _milliseconds_of(record.finished)
        # MLflow takes equal points once: a run that is sent again has the same time.
        sent_at = finished or _milliseconds(time.time())
        points = [(record.step, name, value) for name, value in summaries.items()]
        for start in range(0, len(points), _MOST_METRICS):
            part = points[start : start + _MOST_METRICS]
            self._client.log_batch(self._id, metrics=_metrics(part, sent_at))
        self._client.set_tag(self._id, "advsweep.status", record.status.value)
        if record.error:
            self._client.set_tag(self._id, "advsweep.error", _shorten(record.error))
        end = _ENDS.get(record.status)
        if end is not None:
            self._client.set_terminated(self._id, end, finished)


def _create_run(client: Any, experiment_id: str, tags: tuple[str, ...], record: RunRecord) -> str:
    """Return the id of a new run."""
    described = {
        **base.identifiers(record),
        "group": base.group_of(record),
        "seed": record.seed,
        "estimator": record.estimator,
        "backend": record.backend,
        "tags": json.dumps(base.run_tags(record, tags)),
    }
    texts = {f"advsweep.{name}": _shorten(str(value)) for name, value in described.items()}
    run = client.create_run(
        experiment_id,
        start_time=_milliseconds_of(record.started or record.created),
        run_name=record.directory.name,
        tags={RUN_TAG: base.run_key(record), **texts},
    )
    return str(run.info.run_id)


def _metrics(points: list[tuple[int, str, float]], sent_at: int) -> list[Any]:
    from mlflow.entities import Metric

    return [Metric(mlflow_name(name), value, sent_at, step) for step, name, value in points]


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


def _shorten(text: str) -> str:
    return text if len(text) <= _TEXT_CHARACTERS else f"{text[: _TEXT_CHARACTERS - 3]}..."


def _milliseconds(seconds: float) -> int:
    return int(seconds * 1000)


def _milliseconds_of(moment: datetime) -> int:
    return _milliseconds(moment.timestamp())
