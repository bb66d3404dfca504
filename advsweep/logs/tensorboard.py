"""Scalars in TensorBoard's event files.

An event file is a sequence of records: length, checksum of the length, content, checksum of the
content. The package tensorboard has the messages in them. Its own reader checks each record in
Python, which takes 30 microseconds; here the checksums of many records are computed at once.

Source: TensorFlow's tensorflow/core/lib/io/record_writer.h, and crc32c of RFC 3720.
"""

from __future__ import annotations

import importlib
import json
import struct
from collections import defaultdict
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar

import numpy as np

from advsweep.errors import ConfigError
from advsweep.local_files import open_regular
from advsweep.logs.base import LoggedStep, MetricLog, unreadable, whole_step
from advsweep.packages import extra_command

if TYPE_CHECKING:
    from jaxtyping import UInt8, UInt32

EVENTS = "events.out.tfevents."
"""What the name of an event file contains."""

_BLOCK = 2**22
_LENGTH = struct.Struct("<QI")
_CHECKSUM = 4
_CHECKED = 2**12
"""Contents up to this size have their checksum checked; larger ones hold no scalars."""
_LARGEST = 2**28

_TEXTS = ("args/text_summary", "args", "model_config/text_summary", "config/text_summary")
"""Tags of texts that hold a run's settings as JSON; transformers writes the first."""

_HPARAMS = "hparams"


class TensorBoardEvents(MetricLog):
    """The scalars of one run: an event file, or all those in a folder.

    Texts of settings, and hyperparameters, become the config.
    """

    kind: ClassVar[str] = "tensorboard"

    def __init__(self, path: Path) -> None:
        super().__init__(path)
        self._offsets: dict[Path, int] = {}
        self._finished = False
        self._event: Any = None

    def finish(self) -> None:
        self._finished = True

    def read_new(self) -> list[LoggedStep]:
        return list(self.iter_new())

    def iter_new(self) -> Iterator[LoggedStep]:
        for file in event_files(self.path):
            yield from self._read(file)

    def _read(self, file: Path) -> Iterator[LoggedStep]:
        step: int | None = None
        values: dict[str, Any] = {}
        for content in self._records(file):
            for found, tag, value in self._values(content):
                if found != step and values and step is not None:
                    yield LoggedStep(step, self._numbers(values.items()))
                    values = {}
                step = found
                values[tag] = value
        if values and step is not None:
            yield LoggedStep(step, self._numbers(values.items()))

    def _values(self, content: bytes) -> Iterator[tuple[int, str, float]]:
        if self._event is None:
            self._event = _messages("event_pb2").Event
        try:
            event = self._event.FromString(content)
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

    def _records(self, file: Path) -> Iterator[bytes]:
        """Yields the contents of the records that were added to a file."""
        offset = self._offsets.get(file, 0)
        try:
            stream = open_regular(file.resolve())
        except FileNotFoundError:
            return
        except OSError as error:
            raise unreadable(file, error) from error
        with stream:
            if stream.seek(0, 2) < offset:
                offset = 0
            stream.seek(offset)
            rest = b""
            while block := stream.read(_BLOCK):
                contents, used, fault = _frames(rest + block)
                rest = (rest + block)[used:]
                offset += used
                self._offsets[file] = offset
                sound = _sound([content for content, _ in contents], [c for _, c in contents])
                for (content, _), is_sound in zip(contents, sound, strict=True):
                    if is_sound:
                        yield content
                    else:
                        self.left_out["damaged records"] += 1
                if fault:
                    # Nothing tells where the next record begins.
                    self.left_out["event files with a damaged rest"] += 1
                    self._offsets[file] = stream.seek(0, 2)
                    return
            if rest and self._finished:
                self.left_out["incomplete records"] += 1
                self._offsets[file] = offset + len(rest)


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


def _frames(data: bytes) -> tuple[list[tuple[bytes, int]], int, bool]:
    """Returns complete records with their checksums, the bytes used, and whether one is absurd."""
    contents: list[tuple[bytes, int]] = []
    place = 0
    while place + _LENGTH.size <= len(data):
        length, checksum = _LENGTH.unpack_from(data, place)
        if length > _LARGEST or (
            # Checked where it matters: a wrong length misplaces all that follows.
            (length > _CHECKED or not contents) and not _is_sound(data[place : place + 8], checksum)
        ):
            return contents, place, True
        end = place + _LENGTH.size + length + _CHECKSUM
        if end > len(data):
            break
        content = data[place + _LENGTH.size : end - _CHECKSUM]
        contents.append((content, int.from_bytes(data[end - _CHECKSUM : end], "little")))
        place = end
    return contents, place, False


def _is_sound(content: bytes, checksum: int) -> bool:
    array = np.frombuffer(content, np.uint8)[None]
    return int(_masked_crc32c(array)[0]) == checksum


def _sound(contents: list[bytes], checksums: list[int]) -> list[bool]:
    """Returns for each record whether its checksum is right; large ones count as right."""
    sound = [True] * len(contents)
    by_length: dict[int, list[int]] = defaultdict(list)
    for place, content in enumerate(contents):
        by_length[len(content)].append(place)
    for length, places in by_length.items():
        if not 0 < length <= _CHECKED:
            continue
        joined = b"".join(contents[place] for place in places)
        found = _masked_crc32c(np.frombuffer(joined, np.uint8).reshape(len(places), length))
        for place, computed in zip(places, found.tolist(), strict=True):
            sound[place] = computed == checksums[place]
    return sound


def _crc_table() -> UInt32[np.ndarray, " 256"]:
    table = np.arange(256, dtype=np.uint32)
    for _ in range(8):
        table = np.where(table & 1, (table >> 1) ^ np.uint32(0x82F63B78), table >> 1)
    return table.astype(np.uint32)


_TABLE = _crc_table()


def _masked_crc32c(rows: UInt8[np.ndarray, "records bytes"]) -> UInt32[np.ndarray, " records"]:
    """Returns the checksums that event files have of some contents of equal length."""
    crc = np.full(len(rows), 0xFFFFFFFF, np.uint32)
    for column in np.ascontiguousarray(rows.T):
        crc = _TABLE[(crc ^ column) & 0xFF] ^ (crc >> np.uint32(8))
    crc = ~crc
    rotated = (crc >> np.uint32(15)) | (crc << np.uint32(17))
    return rotated + np.uint32(0xA282EAD8)


def _scalar(value: Any) -> float | None:
    """Returns the number of a summary value; None for texts, histograms, images and the like."""
    kind = value.WhichOneof("value")
    if kind == "simple_value":
        return float(value.simple_value)
    if kind != "tensor":
        return None
    tensor = value.tensor
    if any(dim.size != 1 for dim in tensor.tensor_shape.dim):
        return None
    for numbers in (tensor.float_val, tensor.double_val, tensor.int_val, tensor.int64_val):
        if len(numbers) == 1:
            return float(numbers[0])
    form = _FORMS.get(tensor.dtype)
    if form is not None and len(tensor.tensor_content) == form.size:
        return float(form.unpack(tensor.tensor_content)[0])
    return None


_FORMS = {
    number: struct.Struct(f"<{form}") for number, form in {1: "f", 2: "d", 3: "i", 9: "q"}.items()
}
"""How numbers are packed, by TensorFlow's numbers of types."""


def _hyperparameters(content: bytes) -> dict[str, Any]:
    """Returns the hyperparameters of the plug-in of that name."""
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


def _messages(module: str) -> Any:
    try:
        return importlib.import_module(f"tensorboard.compat.proto.{module}")
    except ImportError as error:
        raise ConfigError(
            "tensorboard: expected the package tensorboard to read event files, got: not "
            f"installed; install it with `{extra_command('tensorboard')}`"
        ) from error
