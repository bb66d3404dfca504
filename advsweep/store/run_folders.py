"""Run folders: their names and manifests.

Run folders lie directly below one parent folder. The manifest of each names its run, so that no
command deletes or writes to the folder of another run:

    run.json    {"format": 1, "run": IDENTITY}
"""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any, TypeGuard

from advsweep.errors import StoreError
from advsweep.local_files import make_private_folder, open_regular, replace_file

MANIFEST = "run.json"
FORMAT = 1

# Digits of a run's identity in the name of its folder.
PREFIX = 12

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

    Args:
        seed: None if it is unknown.

    The values are checked before they become a path, because a store from elsewhere may hold
    any value.

    Raises:
        StoreError: advsweep does not write such a value.
    """
    for what, value, fits, expected in (
        ("identity", identity, is_hash(identity), "64 hexadecimal digits"),
        ("estimator", estimator, is_name(estimator), "lower-case letters, digits and underscores"),
        ("seed", seed, seed is None or is_whole(seed), "a whole number from 0"),
        ("attempt", attempt, is_whole(attempt, 1), "a whole number from 1"),
    ):
        if not fits:
            raise StoreError(f"{what}: expected {expected}, got {shown(value)}")
    again = "" if attempt == 1 else f"-{attempt}"
    numbered = "" if seed is None else f"-seed{seed}"
    return f"{estimator}{numbered}-{str(identity)[:PREFIX]}{again}"


def is_whole(value: object, least: int = 0, end: int = 2**63) -> TypeGuard[int]:
    """Return whether a value is a whole number from `least` and below `end`."""
    return isinstance(value, int) and not isinstance(value, bool) and least <= value < end


def shown(value: object) -> str:
    """Return a value for a message: short and without control characters."""
    if isinstance(value, (dict, list)):
        return f"a {type(value).__name__}"
    text = repr(value[:50] if isinstance(value, (str, bytes)) else value)
    return text if len(text) <= 60 else f"{text[:57]}..."


def owner_of(folder: Path) -> str | None:
    """Return the identity in the manifest of a folder; None without a readable manifest."""
    return _identity_in(folder / MANIFEST)


def _identity_in(path: Path) -> str | None:
    try:
        with open_regular(path) as file:
            manifest: Any = json.loads(file.read(_MANIFEST_BYTES))
    except (OSError, ValueError, RecursionError):
        return None
    identity = manifest.get("run") if isinstance(manifest, dict) else None
    return identity if is_hash(identity) else None


def claim_folder(folder: Path, identity: str) -> None:
    """Create a run's folder and its manifest unless they exist.

    Raises:
        StoreError: the folder belongs to another run, or it is or contains a link or a special
            file, through which the run could write elsewhere.
        OSError: the folder cannot be created.
    """
    make_private_folder(folder)
    # Whoever may write to the parent could have put a link there, to have other files replaced.
    for entry in (folder, *folder.iterdir()):
        if entry.is_symlink() or not (entry.is_file() or entry.is_dir()):
            raise StoreError(
                f"{entry}: expected a plain file or folder, got a link or a special file, through "
                "which a run would write elsewhere; remove it"
            )
    # Folders of earlier versions have no manifest; those of their checkpoints name the run.
    checkpoints = folder.glob("checkpoints/step-*/manifest.json")
    owner = owner_of(folder)
    owners = {owner} if owner else set(map(_identity_in, checkpoints)) - {None}
    if others := owners - {identity}:
        raise StoreError(
            f"{folder} belongs to the run {min(map(str, others))[:24]}, not to {identity[:24]}, "
            "whose folder has the same name; move it elsewhere, or set ADVSWEEP_RUNS to another "
            "folder"
        )
    if not (folder / MANIFEST).exists():
        # Replaced as a whole: half a manifest would make the folder nobody's.
        replace_file(folder / MANIFEST, json.dumps({"format": FORMAT, "run": identity}))
