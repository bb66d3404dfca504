"""Logs of inspect_ai: what was evaluated, and the scores of all samples.

    log = read_log(Path("logs/2026-01-01_gsm8k_abc.eval"))
    log.header["model"], log.samples[0]["scores"]

Facts about the format are of inspect_ai 0.3.285. A log is a document `.json`, or an archive
`.eval`, in which `summaries.json` has the scores of all samples; while the evaluation runs they
are in `_journal/summaries/N.json`. Entries may be compressed by zstd, which `zipfile` reads from
Python 3.14 on. Nothing is unpacked to the disk, and what is read is bounded, whatever the archive
declares.
"""

from __future__ import annotations

import json
import math
import os
import re
import sys
import zipfile
import zlib
from collections.abc import Mapping
from io import BufferedReader
from pathlib import Path
from typing import IO, Any, NamedTuple

from advsweep.errors import ConfigError
from advsweep.local_files import open_regular
from advsweep.logs.base import unreadable
from advsweep.packages import import_extra
from advsweep.printable import printable_line

# Bytes of a document, and of all entries that are read of an archive.
MOST_BYTES = 2**28

# zipfile reads the list of an archive's entries as a whole.
_MOST_DIRECTORY = 2**24
# Bytes of an archive's last record, of the one before it in ZIP64, and of an entry's header.
_END, _LOCATOR, _LOCAL = 22, 20, 30

_BLOCK = 2**20
_ZSTD = 93
_JOURNAL = re.compile(r"_journal/summaries/(\d{1,9})\.json")
# What `value_to_float` of inspect_ai makes of texts: correct, partial, incorrect, no answer.
_VERDICTS = {"C": 1.0, "P": 0.5, "I": 0.0, "N": 0.0}
_VERDICTS |= {"yes": 1.0, "true": 1.0, "no": 0.0, "false": 0.0}

_DAMAGED = (
    *(OSError, ValueError, LookupError, TypeError, RuntimeError, EOFError),
    *(AttributeError, OverflowError),
    *(zipfile.BadZipFile, zlib.error),
)


class InspectLog(NamedTuple):
    """A log.

    Attributes:
        header: what was evaluated: `model`, `task`, `created`, `config` and the like.
        samples: of each epoch of a sample the last one, with `id`, `epoch`, `input`, and
            `scores` by scorer, or SCORER/KEY of several values; None for what is no number, and
            no scores for a sample that failed.
    """

    header: Mapping[str, Any]
    samples: list[dict[str, Any]]


def log_files(path: Path) -> list[Path]:
    """Return a log, or the archives below a folder, or else the documents that are logs."""
    if path.is_dir():
        found = sorted(path.rglob("*.eval"))
        return found or [file for file in sorted(path.rglob("*.json")) if _begins_as_log(file)]
    is_log = path.suffix == ".eval" or (path.suffix == ".json" and _begins_as_log(path))
    return [path] if is_log else []


def _begins_as_log(file: Path) -> bool:
    try:
        with open_regular(file.resolve()) as stream:
            start = stream.read(400)
    except OSError:
        return False
    return b'"version"' in start and b'"eval"' in start


def read_log(path: Path) -> InspectLog:
    """Read the header and the samples of a log.

    Raises:
        ConfigError: it is no log, is damaged, or is larger than the bounds.
    """
    try:
        stream = open_regular(path.resolve())
    except OSError as error:
        raise unreadable(path, error) from error
    with stream:
        try:
            if path.suffix == ".eval":
                document = _read_archive(stream, path)
            else:
                document = json.loads(_bounded(stream, MOST_BYTES, path))
            spec, samples = document["eval"], document.get("samples") or []
            rows = {(row["id"], row["epoch"]): _sample(row) for row in samples}
            return InspectLog(spec | {"model": spec["model"]}, list(rows.values()))
        except ConfigError:
            raise
        except _DAMAGED as error:
            raise ConfigError(
                f"{path}: expected a log of inspect_ai, got: {type(error).__name__}: "
                f"{printable_line(str(error))[:200]}"
            ) from error


def _sample(row: dict[str, Any]) -> dict[str, Any]:
    found: dict[str, float | None] = {}
    for name, score in ({} if row.get("error") else row.get("scores") or {}).items():
        value = score["value"]
        for key, part in value.items() if isinstance(value, dict) else [("", value)]:
            if isinstance(part, str):
                part = _VERDICTS.get(part, _VERDICTS.get(part.lower()))
            is_number = isinstance(part, (int, float)) and math.isfinite(part)
            found[f"{name}/{key}" if key else name] = float(part) if is_number else None
    return {"id": row["id"], "epoch": row["epoch"], "input": row["input"], "scores": found}


def _read_archive(stream: BufferedReader, path: Path) -> dict[str, Any]:
    """Return the header of an archive with the samples in it."""
    size = stream.seek(0, os.SEEK_END)
    stream.seek(max(size - _END - _LOCATOR, 0))
    tail = stream.read().rjust(_END + _LOCATOR)
    # The record that zipfile takes, too: with a comment or ZIP64 it would look elsewhere.
    end = tail[_LOCATOR:]
    is_plain = end.startswith(b"PK\5\6") and end.endswith(b"\0\0")
    if not is_plain or tail.startswith(b"PK\6\7"):
        raise ConfigError(
            f"{path}: expected an archive of up to 65,535 entries and 4 GiB that is not cut; "
            "`inspect log convert --to json` makes a document"
        )
    if int.from_bytes(end[12:16], "little") > _MOST_DIRECTORY:
        raise ConfigError(f"{path}: expected a list of entries of up to 16 MiB, got more")
    archive = zipfile.ZipFile(stream)
    names = set(archive.namelist())
    header = "header.json" if "header.json" in names else "_journal/start.json"
    journal = sorted((int(m[1]), m[0]) for m in map(_JOURNAL.fullmatch, names) if m)
    summaries = ["summaries.json"] if "summaries.json" in names else [name for _, name in journal]
    left, documents = MOST_BYTES, []
    for name in (header, *summaries):
        data = _unpacked(stream, archive.getinfo(name), archive, left, path)
        left -= len(data)
        documents.append(json.loads(data))
    start, *parts = documents
    return {**start, "samples": [row for part in parts for row in part]}


def _unpacked(
    stream: BufferedReader, info: zipfile.ZipInfo, archive: zipfile.ZipFile, most: int, path: Path
) -> bytes:
    entry: IO[bytes]
    # Those of inspect_ai: others raise errors of their own, and LZMA declares how much it needs.
    if info.compress_type not in (zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED, _ZSTD):
        raise ValueError("its compression method is not supported")
    if info.compress_type == _ZSTD and sys.version_info < (3, 14):
        arrow = import_extra("pyarrow", "data", "an archive of inspect_ai")
        stream.seek(info.header_offset)
        header = stream.read(_LOCAL)
        # Before the content: its name, and an extra field.
        stream.seek(sum(int.from_bytes(header[at : at + 2], "little") for at in (26, 28)), 1)
        packed = stream.read(min(info.compress_size, MOST_BYTES))
        entry = arrow.input_stream(arrow.py_buffer(packed), compression="zstd")
    else:
        entry = archive.open(info)
    with entry:
        data = _bounded(entry, most, path)
    if zlib.crc32(data) != info.CRC:
        raise ValueError(f"a checksum of {info.filename[:40]!r} is wrong")
    return data


def _bounded(stream: IO[bytes], most: int, path: Path) -> bytes:
    """Read a stream to its end, in blocks, since an archive may declare any size."""
    data = bytearray()
    while block := stream.read(_BLOCK):
        data += block
        if len(data) > most:
            raise ConfigError(f"{path}: expected at most {MOST_BYTES >> 20} MiB, got more")
    return bytes(data)
