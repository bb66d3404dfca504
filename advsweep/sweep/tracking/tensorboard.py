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
from advsweep.printable import printable_line
from advsweep.store import Status
from advsweep.sweep.tracking.base import (
    Rows,
    Track,
    Tracking,
    group_of,
    printable_config,
)

if TYPE_CHECKING:
    from advsweep.store import RunRecord

_FIELDS = {bool: "bool_value", int: "number_value", float: "number_value"}


@dataclass(kw_only=True)
class TensorboardTracking(Tracking):
    """A folder of event files for each run: `tensorboard --logdir advsweep-runs/tensorboard`.

    The HPARAMS tab shows the configurations, with the seeds of each as one group; the TEXT tab
    shows every config in full. A resumed run is
    written anew, to another file in the same folder.
    """

    name: ClassVar[str] = "tensorboard"
    package: ClassVar[str | None] = "tensorboard"

    directory: str | None = option(
        None, help="where the runs' folders go; null: `tensorboard`, beside the runs' own"
    )

    def in_folder(self, folder: Path) -> Self:
        return replace(self, directory=str(folder.absolute()))

    def open(self, record: RunRecord) -> Track:
        runs = record.directory.parent
        if self.directory is not None:
            return TensorboardTrack(Path(self.directory).absolute() / record.directory.name, record)
        folder = runs / "tensorboard" / record.directory.name
        make_private_folder(folder)
        return TensorboardTrack(folder, record)


class TensorboardTrack(Track):
    """One run's event file."""

    def __init__(self, folder: Path, record: RunRecord) -> None:
        from tensorboard.compat.proto import event_pb2, summary_pb2
        from tensorboard.summary.writer.event_file_writer import EventFileWriter

        self._event = event_pb2.Event
        self._summary = summary_pb2.Summary
        self._writer = EventFileWriter(str(folder))
        # Readers drop what earlier files have from this step on: the run is written anew.
        start = event_pb2.SessionLog(status=event_pb2.SessionLog.START)
        self._add(step=0, session_log=start)
        self._add_config(record)

    def log(self, rows: Rows) -> None:
        for step, values in rows:
            scalars = [
                self._summary.Value(tag=printable_line(name), simple_value=value)
                for name, value in values.items()
            ]
            self._add(step=step, summary=self._summary(value=scalars))
        self._writer.flush()

    def close(self, record: RunRecord, summaries: Mapping[str, float]) -> None:
        self.log([(record.step, summaries)])
        # Readers keep the first end that they find; any other state may still change.
        if record.status is Status.DONE:
            self._add_end()
        self._writer.close()

    def _add_end(self) -> None:
        from tensorboard.plugins.hparams.api_pb2 import Status as Ends
        from tensorboard.plugins.hparams.metadata import SESSION_END_INFO_TAG
        from tensorboard.plugins.hparams.plugin_data_pb2 import SessionEndInfo

        end = SessionEndInfo(status=Ends.STATUS_SUCCESS, end_time_secs=time.time())
        self._add_session(SESSION_END_INFO_TAG, session_end_info=end)

    def _add_config(self, record: RunRecord) -> None:
        from tensorboard.plugins.hparams.metadata import SESSION_START_INFO_TAG
        from tensorboard.plugins.hparams.plugin_data_pb2 import SessionStartInfo
        from tensorboard.plugins.text.metadata import create_summary_metadata
        from tensorboard.util.tensor_util import make_tensor_proto

        config = printable_config(record)
        text = f"```json\n{json.dumps(config, indent=2)}\n```"
        self._add_value(
            tag="config",
            metadata=create_summary_metadata(display_name=None, description=None),
            tensor=make_tensor_proto(text),
        )
        start = SessionStartInfo(group_name=group_of(record), start_time_secs=time.time())
        for key, value in leaves(config):
            field = _FIELDS.get(type(value), "string_value")
            setattr(start.hparams[key], field, value if type(value) in _FIELDS else str(value))
        self._add_session(SESSION_START_INFO_TAG, session_start_info=start)

    def _add_session(self, tag: str, **data: Any) -> None:
        """Adds what the HPARAMS tab reads; tensorboard's own writer of it needs TensorFlow."""
        from tensorboard.plugins.hparams.metadata import NULL_TENSOR, create_summary_metadata
        from tensorboard.plugins.hparams.plugin_data_pb2 import HParamsPluginData

        metadata = create_summary_metadata(HParamsPluginData(**data))
        self._add_value(tag=tag, metadata=metadata, tensor=NULL_TENSOR)

    def _add_value(self, **parts: Any) -> None:
        self._add(summary=self._summary(value=[self._summary.Value(**parts)]))

    def _add(self, **parts: Any) -> None:
        self._writer.add_event(self._event(wall_time=time.time(), **parts))
