"""Event files for TensorBoard (https://www.tensorflow.org/tensorboard), written without torch."""

from __future__ import annotations

import json
import time
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar, Self

from advsweep.components import leaves, option
from advsweep.local_files import make_private_folder
from advsweep.store import Status
from advsweep.sweep.tracking import base

if TYPE_CHECKING:
    from advsweep.store import RunRecord

_FIELDS = {bool: "bool_value", int: "number_value", float: "number_value"}


@dataclass(kw_only=True)
class TensorboardTracking(base.Tracking):
    """A folder of event files for each run: `tensorboard --logdir advsweep-runs/tensorboard`.

    The HPARAMS tab shows the configurations, with the seeds of each as one group; the TEXT tab
    shows every config in full. A resumed run is written anew, to another file in the same folder.
    """

    name: ClassVar[str] = "tensorboard"
    package: ClassVar[str | None] = "tensorboard"

    directory: str | None = option(
        None, help="where the runs' folders go; null: `tensorboard`, beside the runs' own"
    )

    def in_folder(self, folder: Path) -> Self:
        return replace(self, directory=str(folder.absolute()))

    def open(self, record: RunRecord) -> base.Track:
        runs = record.directory.parent
        parent = Path(self.directory).absolute() if self.directory else runs / "tensorboard"
        folder = parent / record.directory.name
        make_private_folder(parent)
        make_private_folder(folder)
        return TensorboardTrack(folder, record)


class TensorboardTrack(base.Track):
    """One run's event file."""

    def __init__(self, folder: Path, record: RunRecord) -> None:
        from tensorboard.compat.proto import event_pb2, summary_pb2
        from tensorboard.plugins.hparams import metadata, plugin_data_pb2
        from tensorboard.plugins.text.metadata import create_summary_metadata
        from tensorboard.summary.writer.event_file_writer import EventFileWriter
        from tensorboard.util.tensor_util import make_tensor_proto

        self._event = event_pb2.Event
        self._summary = summary_pb2.Summary
        self._hparams = metadata
        self._data = plugin_data_pb2
        self._writer = EventFileWriter(str(folder))
        # Readers drop what earlier files have from this step on: the run is written anew.
        self._add(session_log=event_pb2.SessionLog(status=event_pb2.SessionLog.START))
        text = f"```json\n{json.dumps(record.config, indent=2)}\n```"
        plain = create_summary_metadata(display_name=None, description=None)
        self._add_value(tag="config", metadata=plain, tensor=make_tensor_proto(text))
        start = self._data.SessionStartInfo(
            group_name=base.group_of(record), start_time_secs=time.time()
        )
        for key, value in leaves(record.config):
            field = _FIELDS.get(type(value), "string_value")
            setattr(start.hparams[key], field, value if type(value) in _FIELDS else str(value))
        self._add_session(self._hparams.SESSION_START_INFO_TAG, session_start_info=start)

    def log(self, rows: base.Rows) -> None:
        for step, values in rows:
            scalars = [self._summary.Value(tag=n, simple_value=v) for n, v in values.items()]
            self._add(step=step, summary=self._summary(value=scalars))
        self._writer.flush()

    def close(self, record: RunRecord, summaries: Mapping[str, float]) -> None:
        self.log([(record.step, summaries)])
        # Readers keep the first end that they find; any other state may still change.
        if record.status is Status.DONE:
            from tensorboard.plugins.hparams.api_pb2 import Status as Ends

            end = self._data.SessionEndInfo(status=Ends.STATUS_SUCCESS, end_time_secs=time.time())
            self._add_session(self._hparams.SESSION_END_INFO_TAG, session_end_info=end)
        self._writer.close()

    def _add_session(self, tag: str, **data: Any) -> None:
        """Add what the HPARAMS tab reads; tensorboard's own writer of it needs TensorFlow."""
        metadata = self._hparams.create_summary_metadata(self._data.HParamsPluginData(**data))
        self._add_value(tag=tag, metadata=metadata, tensor=self._hparams.NULL_TENSOR)

    def _add_value(self, **parts: Any) -> None:
        self._add(summary=self._summary(value=[self._summary.Value(**parts)]))

    def _add(self, **parts: Any) -> None:
        self._writer.add_event(self._event(wall_time=time.time(), **parts))
