"""Local files: the cache folder, private files, and a working folder free of settings."""

from __future__ import annotations

import contextlib
import errno
import io
import os
import secrets
import stat
from contextlib import AbstractContextManager
from pathlib import Path
from typing import IO, Any

import platformdirs


def cache_folder() -> Path:
    """Return the folder for base models and the like: $ADVSWEEP_CACHE or the user's cache."""
    configured = os.environ.get("ADVSWEEP_CACHE")
    return Path(configured) if configured else platformdirs.user_cache_path("advsweep")


FILE_MODE = 0o600
FOLDER_MODE = 0o700


def make_private_folder(folder: Path) -> None:
    """Make a folder and its missing parents, with mode 0700.

    Raises:
        OSError: the folder cannot be made, or a file is in its place.
    """
    missing = [folder, *folder.parents]
    missing = [path for path in missing if not path.is_dir()]
    for path in reversed(missing):
        # Another process may make the same folder at the same time.
        with contextlib.suppress(FileExistsError):
            path.mkdir(mode=FOLDER_MODE)
    if not folder.is_dir():
        folder.mkdir()  # raises the error that says what is in its place


def open_private(file: Path | str, mode: str, **options: Any) -> IO[Any]:
    """Open a file like `open`; a new file gets mode 0600.

    Raises:
        OSError: as `open`.
    """
    # The file is made with its mode: until a later chmod others could open it.
    return open(file, mode, opener=lambda path, flags: os.open(path, flags, FILE_MODE), **options)


def replace_file(path: Path, text: str) -> None:
    """Write a private text file, of which other processes see the old content or the new.

    Raises:
        OSError: it cannot be written; the old content stays.
    """
    new = path.with_name(f".{path.name}-{secrets.token_hex(8)}")
    try:
        with open_private(new, "x", encoding="utf-8") as file:
            file.write(text)
            file.flush()
            # Before the rename: after a crash of the machine the name could lead to an empty file.
            os.fsync(file.fileno())
        new.replace(path)
    finally:
        new.unlink(missing_ok=True)


def open_regular(path: Path) -> io.BufferedReader:
    """Open a file for reading that may come from somebody else.

    Raises:
        OSError: as `open` does, and for a link or a special file.
    """
    try:
        # Opening a FIFO would wait for a writer.
        descriptor = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK)
    except OSError as error:
        if error.errno in (errno.ELOOP, errno.ENXIO):
            raise OSError(errno.EINVAL, "no regular file") from error
        raise
    # Asked of what is open: between a stat of the path and its opening it could be replaced.
    if not stat.S_ISREG(os.fstat(descriptor).st_mode):
        os.close(descriptor)
        raise OSError(errno.EINVAL, "no regular file")
    return open(descriptor, "rb")


def outside_working_folder() -> AbstractContextManager[None]:
    """Change to the root folder for the time of a `with` block, in all threads of the process.

    Some libraries read settings from the working folder on import: matplotlib reads
    `matplotlibrc`, and wandb reads `wandb/settings`, which may name the server that gets the
    user's key. Only the administrator of the machine can write to the root folder.

    Raises:
        OSError: the working folder no longer exists.
    """
    return contextlib.chdir(os.sep)
