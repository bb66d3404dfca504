"""Scalars in TensorBoard's event files, read by TensorBoard's own loader.

In an import each folder with event files is a run. A subfolder that the same process wrote, as
`add_scalars` and `add_hparams` make them, belongs to the run above it.
"""

from __future__ import annotations

import dataclasses
import importlib
import json
import re
from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from itertools import groupby
from operator import itemgetter
from pathlib import Path
from typing import Any, ClassVar

from advsweep.errors import ConfigError
from advsweep.logs.base import ImportedRun, ImportOptions, Reader, whole_step
from advsweep.logs.names import LoggedStep
from advsweep.packages import extra_command

EVENTS = "events.out.tfevents."
"""What the name of an event file contains."""

_TEXTS = ("args/text_summary", "args", "model_config/text_summary", "config/text_summary")
"""Tags of texts that hold a run's settings as JSON; transformers writes the first."""

_HPARAMS = "hparams"
_FRAME = 16
"""Bytes of a record beside its content: the length and two checksums."""

_WRITER = re.compile(rf".*{re.escape(EVENTS)}\d+\.(?P<process>.+\.\d+)\.\d+.*")
_TIME = re.compile(r"\d+(\.\d+)?")


@dataclass(kw_only=True)
class TensorBoardEvents(Reader):
    """The scalars of one run: an event file, or all those in a folder.

    Texts of settings, and hyperparameters, become the config.
    """

    name: ClassVar[str] = "tensorboard"
    table: ClassVar[str] = "tensorboard"

    def __post_init__(self) -> None:
        super().__post_init__()
        self._loaders: dict[Path, Any] = {}
        self._read: Counter[Path] = Counter()
        self._finished = False

    def finish(self) -> None:
        self._finished = True

    def runs(self, source: Path | str, options: ImportOptions) -> Iterator[ImportedRun]:
        root = Path(source)
        if not root.exists():
            raise ConfigError(f"{root}: expected a file or a folder of events, got nothing")
        runs = _runs(root)
        if not runs:
            raise ConfigError(f"{root}: expected event files ({EVENTS}...), got none")
        for folder, parts in runs.items():
            run = ImportedRun(
                # Above a single run, its own folder has its name.
                source=folder.name if folder == root else folder.relative_to(root).as_posix(),
                config={},
                steps=[],
            )
            logs = [self.open(part) for part in parts]
            steps = []
            for part, log in zip(parts, logs, strict=True):
                # Hyperparameters have a folder named after the time.
                is_named = part != folder and not _TIME.fullmatch(part.name)
                prefix = f"{part.name}/" if is_named else ""
                for step, own in log.steps():
                    values = {f"{prefix}{name}": value for name, value in own.items()}
                    steps.append(LoggedStep(step, options.names.apply(values)))
                run.config = {**log.config, **run.config}
                if log is not logs[0]:
                    logs[0].left_out.update(log.left_out)
            yield dataclasses.replace(run, steps=steps, left_out=logs[0].left_out)

    def poll(self) -> Iterator[LoggedStep]:
        for file in event_files(self.path):
            scalars = (each for content in self._contents(file) for each in self._values(content))
            for step, some in groupby(scalars, key=itemgetter(0)):
                yield LoggedStep(step, self._numbers((tag, value) for _, tag, value in some))

    def _contents(self, file: Path) -> Iterator[bytes]:
        """Yield the contents of the records that were added to a file, up to a damaged one."""
        loader = _module("backend.event_processing.event_file_loader").RawEventFileLoader
        if not file.is_file():
            return
        try:
            if file not in self._loaders:
                self._loaders[file] = loader(str(file.resolve()))
            for content in self._loaders[file].Load():
                self._read[file] += len(content) + _FRAME
                yield content
        except (OSError, MemoryError, OverflowError) as error:
            # A record may declare more than memory holds.
            raise ConfigError(f"{file}: expected a log to read, got: {error}") from error
        if self._finished and self._read[file] < file.stat().st_size:
            self.left_out["event files with a damaged or incomplete rest"] += 1

    def _values(self, content: bytes) -> Iterator[tuple[int, str, float]]:
        try:
            event = _module("compat.proto.event_pb2").Event.FromString(content)
        except Exception:  # noqa: BLE001 (the errors of protobuf depend on its version)
            self.left_out["damaged records"] += 1
            return
        for value in event.summary.value:
            number = _scalar(value)
            if number is None:
                self._read_settings(value)
            elif (step := whole_step(event.step)) is None:
                self.left_out["values without a step"] += 1
            else:
                yield step, value.tag, number

    def _read_settings(self, value: Any) -> None:
        plugin = value.metadata.plugin_data
        if plugin.plugin_name == _HPARAMS:
            self._config |= _hyperparameters(plugin.content)
        elif value.tag in _TEXTS and value.tensor.string_val:
            try:
                settings = json.loads(value.tensor.string_val[0])
            except (ValueError, RecursionError):
                return
            if isinstance(settings, dict):
                # What transformers writes first are the arguments of the training.
                self._config = {**settings, **self._config}


def _runs(root: Path) -> dict[Path, list[Path]]:
    """Return the folders of each run by the folder that names it, both sorted."""
    if not root.is_dir():
        return {root: [root]}
    folders = sorted({file.parent for file in root.rglob(f"*{EVENTS}*") if file.is_file()})
    runs: dict[Path, list[Path]] = {}
    processes: dict[Path, set[str]] = {}
    for folder in folders:
        matches = (_WRITER.fullmatch(file.name) for file in event_files(folder))
        processes[folder] = {match["process"] for match in matches if match}
        above = next((f for f in folder.parents if f in runs), None)
        if above is not None and processes[folder] <= processes[above]:
            runs[above].append(folder)
        else:
            runs[folder] = [folder]
    return runs


def event_files(path: Path) -> list[Path]:
    """Return an event file, or those in a folder, oldest first; empty without any.

    A folder without event files stands for those below it, as transformers makes `runs/DATE_HOST`.
    """
    if not path.is_dir():
        return [path] if path.exists() else []
    inside = list(path.iterdir())
    if not any(EVENTS in file.name for file in inside):
        folders = (file for file in inside if file.is_dir() and not file.is_symlink())
        inside = [file for folder in folders for file in event_files(folder)]
    # The name has the time at which the file was made.
    return sorted((f for f in inside if EVENTS in f.name), key=lambda file: file.name)


def _scalar(value: Any) -> float | None:
    """Return the number of a summary value; None for texts, histograms, images and the like."""
    kind = value.WhichOneof("value")
    if kind == "simple_value":
        return float(value.simple_value)
    # Bounded first: a shape may declare more numbers than memory holds.
    if kind != "tensor" or any(dim.size != 1 for dim in value.tensor.tensor_shape.dim):
        return None
    try:
        array = _module("util.tensor_util").make_ndarray(value.tensor)
    except (TypeError, ValueError):  # No numbers, or not as many as the shape says.
        return None
    return float(array.item()) if array.size == 1 and array.dtype.kind in "fiu" else None


def _hyperparameters(content: bytes) -> dict[str, Any]:
    """Return the hyperparameters of the plug-in of that name."""
    try:
        module = importlib.import_module("tensorboard.plugins.hparams.plugin_data_pb2")
        data = module.HParamsPluginData.FromString(content)
    except Exception:  # noqa: BLE001 (another version, or no hyperparameters)
        return {}
    found: Mapping[str, Any] = data.session_start_info.hparams
    settings: dict[str, Any] = {}
    for name, value in found.items():
        kind = value.WhichOneof("kind")
        if kind in ("number_value", "string_value", "bool_value"):
            settings[name] = getattr(value, kind)
    return settings


def _module(name: str) -> Any:
    try:
        return importlib.import_module(f"tensorboard.{name}")
    except ImportError as error:
        raise ConfigError(
            "tensorboard: expected the package tensorboard to read event files, got: not "
            f"installed; install it with `{extra_command('tensorboard')}`"
        ) from error
