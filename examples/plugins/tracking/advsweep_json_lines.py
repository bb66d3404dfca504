"""A tracker: a file of JSON lines for each run, for `jq` or a log shipper."""

import json
from dataclasses import dataclass
from pathlib import Path
from typing import ClassVar

from advsweep.components import option
from advsweep.local_files import make_private_folder
from advsweep.sweep.tracking.base import Track, Tracking


@dataclass(kw_only=True)
class JsonLines(Tracking):
    """Writes `{"step": 7, "reward/mean": 0.5, ...}` lines, then one with the run's end."""

    name: ClassVar[str] = "json_lines"

    directory: str | None = option(None, help="folder of the files; null: `lines`, beside the runs")

    def open(self, record):
        runs = record.directory.parent
        folder = Path(self.directory).absolute() if self.directory else runs / "lines"
        make_private_folder(folder)
        return JsonLinesTrack(folder / f"{record.directory.name}.jsonl")


class JsonLinesTrack(Track):
    """The file of one run, written anew when the run is opened: it keeps no `last_step`."""

    def __init__(self, path):
        self._file = path.open("w", encoding="utf-8")

    def log(self, rows):
        for step, values in rows:
            self._file.write(json.dumps({"step": step, **values}) + "\n")
        self._file.flush()

    def close(self, record, summaries):
        end = {"status": record.status.value, "steps": record.step, **summaries}
        self._file.write(json.dumps(end) + "\n")
        self._file.close()
