"""Checkpoint directories of every backend: complete, or not there at all.

A run directory holds `checkpoints/step-000050/`, with the files that the backend needs to resume
after step 50 and a manifest of their checksums:

    manifest.json    {"format": 1, "step": 50, "run": IDENTITY,
                      "files": {"model.safetensors": {"bytes": 431296, "sha256": "..."}}}

A checkpoint is written under another name, flushed to disk and renamed. A process killed at any
moment therefore leaves earlier checkpoints intact. The other name is random: a process that was
suspended while writing may wake up after another has taken over the run, and must not write into
that one's checkpoint.
"""

from __future__ import annotations

import contextlib
import errno
import hashlib
import json
import os
import re
import secrets
import shutil
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path, PurePosixPath
from typing import Any

from advsweep.errors import CheckpointError, reason_of
from advsweep.local_files import make_private_folder, open_private, open_regular

FORMAT = 1
MANIFEST = "manifest.json"
_PARTIAL = ".partial-"


@dataclass(frozen=True)
class Checkpoint:
    """A checkpoint whose checksums were verified.

    Attributes:
        step: the training step after which it was written.
        path: its directory.
        names: its files.
    """

    step: int
    path: Path
    names: Sequence[str]

    @property
    def files(self) -> dict[str, bytes]:
        """The contents by file name, all read at once; read large ones by their paths."""
        return {name: (self.path / name).read_bytes() for name in self.names}


class Checkpoints:
    """The checkpoints of one run.

    Args:
        directory: the run's directory; `checkpoints/` is created in it when needed.
        run: the run's identity; checkpoints of other runs are refused.
    """

    def __init__(self, directory: Path, run: str) -> None:
        self.directory = directory / "checkpoints"
        self._run = run

    def path(self, step: int) -> Path:
        return self.directory / f"step-{step:06d}"

    def steps(self) -> list[int]:
        """Return the steps that have a checkpoint, sound or not, ascending."""
        if not self.directory.is_dir():
            return []
        names = (entry.name for entry in self.directory.iterdir() if entry.is_dir())
        matches = (re.fullmatch(r"step-(\d{6,})", name) for name in names)
        return sorted(int(match[1]) for match in matches if match)

    def save(self, step: int, files: Mapping[str, bytes]) -> Path:
        """Write a checkpoint atomically, replacing an older one of the same step.

        Raises:
            CheckpointError: the disk is full or not writable; older checkpoints are intact.
        """

        def write(folder: Path) -> None:
            for name, content in files.items():
                write_durably(folder / name, content)

        return self.save_folder(step, write)

    def save_folder(self, step: int, write: Callable[[Path], None]) -> Path:
        """Write a checkpoint like `save`, for files too large for memory.

        Args:
            write: writes files and folders into the empty folder that it gets.

        Raises:
            CheckpointError: the disk is full or not writable; older checkpoints are intact.
        """
        # Random names: a suspended process that wakes up must not write into another's files.
        partial, aside = (
            self.directory / f"{_PARTIAL}{step:06d}-{secrets.token_hex(8)}" for _ in range(2)
        )
        target = self.path(step)
        try:
            make_private_folder(partial)
            write(partial)
            sums = {}
            for path in sorted(partial.rglob("*")):
                if path.is_file():
                    sums[path.relative_to(partial).as_posix()] = _sum(path)
                # Contents and names before the rename: a power cut keeps no order otherwise.
                _flush(path)
            manifest = {"format": FORMAT, "step": step, "run": self._run, "files": sums}
            write_durably(partial / MANIFEST, json.dumps(manifest, indent=1).encode())
            _flush(partial)
            # A directory cannot be replaced by renaming: the older one goes aside first. Another
            # process may do the same, so this is tried until it works.
            while True:
                try:
                    partial.rename(target)
                    break
                except OSError as error:
                    if error.errno not in (errno.ENOTEMPTY, errno.EEXIST):
                        raise
                with contextlib.suppress(FileNotFoundError):
                    target.rename(aside)
                    shutil.rmtree(aside)
            _flush(self.directory)
        except OSError as error:
            shutil.rmtree(partial, ignore_errors=True)
            newest = f"step {self.steps()[-1]}" if self.steps() else "the beginning"
            raise CheckpointError(
                f"the checkpoint of step {step} cannot be written to {self.directory}: "
                f"{reason_of(error)}; free some space or make the folder writable, then start the "
                f"run again: it resumes from {newest}"
            ) from error
        return target

    def discard_unfinished(self) -> None:
        """Delete unfinished checkpoints of killed processes; nobody else may be writing."""
        for path in self.directory.glob(f"{_PARTIAL}*"):
            shutil.rmtree(path)

    def load(self, step: int) -> Checkpoint:
        """Read the checkpoint of a step.

        Raises:
            CheckpointError: it is missing or damaged, or another run wrote it.
        """
        if step not in self.steps():
            steps = ", ".join(map(str, self.steps())) or "none"
            raise CheckpointError(
                f"{self.directory} has no checkpoint of step {step}; steps that have one: {steps}"
            )
        try:
            return self._read(step)
        except _DamagedError as error:
            raise CheckpointError(
                f"the checkpoint of step {step} in {self.directory} is damaged ({error}); start "
                f"the run again to write it again from the previous one"
            ) from error

    def newest_sound(self, log: Callable[[str], None]) -> Checkpoint | None:
        """Return the newest intact checkpoint; log and skip damaged ones.

        Raises:
            CheckpointError: the newest readable one belongs to another run.
        """
        damaged: list[str] = []
        newest = None
        for step in reversed(self.steps()):
            try:
                newest = self._read(step)
                break
            except _DamagedError as error:
                damaged.append(f"checkpoint step {step} is damaged ({error})")
        if damaged:
            where = "the beginning" if newest is None else f"step {newest.step}"
            log(f"{', '.join(damaged)}; resuming from {where}")
        return newest

    def prune(self, keep_last: int, keep_every: int) -> list[Path]:
        """Delete all but the newest `keep_last` and the multiples of `keep_every` (0: none).

        Returns:
            The deleted directories.
        """
        old = self.steps()[:-keep_last]
        gone = [self.path(s) for s in old if not keep_every or s % keep_every]
        for path in gone:
            shutil.rmtree(path)
        return gone

    def _read(self, step: int) -> Checkpoint:
        path = self.path(step)
        manifest = _read_manifest(path)
        if manifest["run"] != self._run:
            raise CheckpointError(
                f"{path} belongs to the run {manifest['run'][:12]}, not to {self._run[:12]}; "
                f"expected the directory of this run"
            )
        for name, expected in manifest["files"].items():
            try:
                actual = _sum(path / name)
            except OSError as error:
                raise _DamagedError(f"{name}: {reason_of(error)}") from error
            if actual != expected:
                what = "length" if actual["bytes"] != expected["bytes"] else "checksum"
                raise _DamagedError(f"{name}: wrong {what}")
        return Checkpoint(step, path, tuple(manifest["files"]))


class _DamagedError(CheckpointError):
    """A damaged checkpoint; an older one may replace it."""


def _read_manifest(path: Path) -> dict[str, Any]:
    """Return a checked manifest: its names stay in the folder, whoever wrote it."""
    try:
        with open_regular(path / MANIFEST) as file:
            manifest = json.load(file)
        is_known = manifest["format"] == FORMAT and isinstance(manifest["run"], str)
        for name, sums in manifest["files"].items():
            inside = PurePosixPath(name)
            is_below = not inside.is_absolute() and ".." not in inside.parts and "\0" not in name
            is_known = is_known and is_below and sums.keys() == {"bytes", "sha256"}
    except OSError as error:
        raise _DamagedError(f"{MANIFEST}: {reason_of(error)}") from error
    except (ValueError, RecursionError, TypeError, KeyError, AttributeError) as error:
        raise _DamagedError(f"{MANIFEST}: unreadable") from error
    if not is_known:
        raise _DamagedError(f"{MANIFEST}: unreadable, or not of format {FORMAT}")
    return dict(manifest)


def write_durably(path: Path, content: bytes) -> None:
    """Write a file and wait until it is on disk."""
    with open_private(path, "wb") as file:
        file.write(content)
        file.flush()
        os.fsync(file.fileno())


def _flush(path: Path) -> None:
    """Wait until a file, or the names in a directory, are on disk."""
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def _sum(path: Path) -> dict[str, Any]:
    with open_regular(path) as file:
        digest = hashlib.file_digest(file, "sha256").hexdigest()
    return {"bytes": path.stat().st_size, "sha256": digest}
