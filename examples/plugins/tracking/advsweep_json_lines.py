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

    def destination(self, runs):
        return str(self._folder(runs))

    def open(self, record, last_step):
        # advsweep sends the rows after the last step that was sent.
        folder = self._folder(record.directory.parent)
        make_private_folder(folder)
        return JsonLinesTrack(folder / f"{record.directory.name}.jsonl")

    def _folder(self, runs):
        return runs / "lines" if self.directory is None else Path(self.directory).absolute()


class JsonLinesTrack(Track):
    """The file of one run."""

    def __init__(self, path):
        self._file = path.open("a", encoding="utf-8")

    def log(self, step, values):
        self._file.write(json.dumps({"step": step, **values}) + "\n")

    def flush(self):
        self._file.flush()
        return True

    def close(self, record, summaries):
        end = {"status": record.status.value, "steps": record.step, **summaries}
        self._file.write(json.dumps(end) + "\n")
        self._file.close()
