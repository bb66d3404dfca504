"""Run folders: their names, manifests and copies.

Run folders lie directly below one parent folder. The manifest of each names its run, so that no
command deletes, replaces or writes to the folder of another run:

    run.json    {"format": 1, "run": IDENTITY}

Folders of earlier versions lack it; there the manifests of the checkpoints name the run.
"""

from __future__ import annotations

import json
import os
import re
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from advsweep.errors import StoreError
from advsweep.local_files import (
    FILE_MODE,
    FOLDER_MODE,
    make_private_folder,
    open_regular,
    replace_file,
)

MANIFEST = "run.json"
FORMAT = 1

MAX_DEPTH = 16
"""The depth to which folders are copied; advsweep makes folders 3 deep."""

COMMAND_FOLDER = "output"
"""The folder of a run that belongs to a command of the user's. Checkpoints in it may hold code,
so it is not copied from a store of somebody else."""

PREFIX = 12
"""Digits of a run's identity in the name of its folder."""

_MANIFEST_BYTES = 1 << 24
_HEX = re.compile(r"[0-9a-f]{64}")
_NAME = re.compile(r"[a-z0-9_]{1,64}")


def is_hash(value: object) -> bool:
    """Return whether a value is a sha256 in hex, such as an identity or a config hash."""
    return isinstance(value, str) and _HEX.fullmatch(value) is not None


def is_name(value: object) -> bool:
    """Return whether a value is a component name: lower-case letters, digits, underscores."""
    return isinstance(value, str) and _NAME.fullmatch(value) is not None


def folder_name(*, identity: object, attempt: object, estimator: object, seed: object) -> str:
    """Return the name of a run's folder.

    The values are checked before they become a path, because a store from elsewhere may hold
    any value.

    Raises:
        StoreError: advsweep does not write such a value.
    """
    if not is_hash(identity):
        raise _unexpected("identity", "64 hexadecimal digits", identity)
    if not is_name(estimator):
        raise _unexpected("estimator", "lower-case letters, digits and underscores", estimator)
    if not _is_whole(seed, 0):
        raise _unexpected("seed", "a whole number from 0", seed)
    if not _is_whole(attempt, 1):
        raise _unexpected("attempt", "a whole number from 1", attempt)
    assert isinstance(identity, str)
    assert isinstance(attempt, int)
    again = f"-{attempt}" if attempt > 1 else ""
    return f"{estimator}-seed{seed}-{identity[:PREFIX]}{again}"


def _is_whole(value: object, least: int) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and least <= value < 2**63


def _unexpected(what: str, expected: str, got: object) -> StoreError:
    return StoreError(f"{what}: expected {expected}, got {shown(got)}")


def shown(value: object) -> str:
    """Return a value for a message: short and without control characters."""
    if isinstance(value, (dict, list)):
        return f"a {type(value).__name__}"
    text = repr(value[:50] if isinstance(value, (str, bytes)) else value)
    return text if len(text) <= 60 else f"{text[:57]}..."


def owners(folder: Path) -> set[str]:
    """Return the identities in the manifests of a folder; empty without a readable manifest.

    Its own manifest has precedence over those of its checkpoints.
    """
    if (own := _identity_in(folder / MANIFEST)) is not None:
        return {own}
    manifests = folder.glob("checkpoints/step-*/manifest.json")
    return {found for path in manifests if (found := _identity_in(path)) is not None}


def _identity_in(path: Path) -> str | None:
    try:
        with open_regular(path) as file:
            manifest: Any = json.loads(file.read(_MANIFEST_BYTES))
    except (OSError, ValueError, RecursionError):
        return None
    found = manifest.get("run") if isinstance(manifest, dict) else None
    return found if is_hash(found) else None


def claim_folder(folder: Path, identity: str) -> None:
    """Create a run's folder and its manifest unless they exist.

    Raises:
        StoreError: the folder belongs to another run, or it is or contains a link or a special
            file, through which the run could write elsewhere.
        OSError: the folder cannot be created.
    """
    make_private_folder(folder)
    if folder.is_symlink():
        raise _not_plain(folder)
    for entry in os.scandir(folder):
        if not (entry.is_file(follow_symlinks=False) or entry.is_dir(follow_symlinks=False)):
            raise _not_plain(Path(entry.path))
    found = owners(folder)
    if others := found - {identity}:
        raise StoreError(
            f"{folder} belongs to the run {min(others)[:24]}, not to {identity[:24]}, whose folder "
            "has the same name; move it elsewhere, or set ADVSWEEP_RUNS to another folder"
        )
    if not (folder / MANIFEST).exists():
        _write_manifest(folder, identity)


def _not_plain(path: Path) -> StoreError:
    return StoreError(
        f"{path}: expected a plain file or folder, got a link or a special file, through which a "
        "run would write elsewhere; remove it"
    )


def _write_manifest(folder: Path, identity: str) -> None:
    replace_file(folder / MANIFEST, json.dumps({"format": FORMAT, "run": identity}))


def copy_folder(source: Path, target: Path, identity: str) -> list[Path]:
    """Copy a run's folder to a new folder, with a manifest of the run.

    Only regular files are copied, with permissions for their owner alone. Links are not followed.

    Returns:
        The paths that were left out: links, special files, folders that are too deep, and the
        folder of a command.

    Raises:
        OSError: a file cannot be read or written.
    """
    left_out: list[Path] = []
    make_private_folder(target)
    for entry, place in _plain_entries(source, target, left_out):
        if entry.is_dir(follow_symlinks=False):
            place.mkdir(mode=FOLDER_MODE)
        elif place != target / MANIFEST:
            shutil.copyfile(entry.path, place, follow_symlinks=False)
            place.chmod(FILE_MODE)
    _write_manifest(target, identity)
    return left_out


def size_of(folder: Path) -> int:
    """Return the bytes that `copy_folder` would copy."""
    entries = _plain_entries(folder, folder, [])
    return sum(e.stat(follow_symlinks=False).st_size for e, _ in entries if not e.is_dir())


def _plain_entries(
    source: Path, target: Path, left_out: list[Path], depth: int = 0
) -> Iterator[tuple[os.DirEntry[str], Path]]:
    """Yield files and folders with their places below `target`, each folder before its files."""
    for entry in sorted(os.scandir(source), key=lambda entry: entry.name):
        place = target / entry.name
        if entry.is_file(follow_symlinks=False):
            yield entry, place
        elif entry.is_dir(follow_symlinks=False) and (
            depth < MAX_DEPTH and not (depth == 0 and entry.name == COMMAND_FOLDER)
        ):
            yield entry, place
            yield from _plain_entries(Path(entry.path), place, left_out, depth + 1)
        else:
            left_out.append(Path(entry.path))
