"""What is kept for this user's other runs and sweeps."""

from __future__ import annotations

import contextlib
import errno
import io
import os
import stat
from contextlib import AbstractContextManager
from pathlib import Path
from typing import IO, Any

import platformdirs


def cache_folder() -> Path:
    """Where base models are kept, among others: $ADVSWEEP_CACHE, or the user's cache folder."""
    configured = os.environ.get("ADVSWEEP_CACHE")
    return Path(configured) if configured else platformdirs.user_cache_path("advsweep")


FILE_MODE = 0o600
FOLDER_MODE = 0o700


def make_private_folder(folder: Path) -> None:
    """Makes a folder, and those above it that are missing, with mode 0700.

    Raises:
        OSError: it cannot be made, or a file is in its place.
    """
    missing = [folder, *folder.parents]
    missing = [path for path in missing if not path.is_dir()]
    for path in reversed(missing):
        # Another process may make it at the same time.
        with contextlib.suppress(FileExistsError):
            path.mkdir(mode=FOLDER_MODE)
    if not folder.is_dir():
        folder.mkdir()


def open_private(file: Path | str, mode: str, **options: Any) -> IO[Any]:
    """`open`, but a file that it makes has mode 0600.

    Raises:
        OSError: as `open` does.
    """
    return open(file, mode, opener=_open, **options)


def _open(path: str, flags: int) -> int:
    return os.open(path, flags, FILE_MODE)


def open_regular(path: Path) -> io.BufferedReader:
    """Opens a file for reading that may come from somebody else.

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
    if not stat.S_ISREG(os.fstat(descriptor).st_mode):
        os.close(descriptor)
        raise OSError(errno.EINVAL, "no regular file")
    return open(descriptor, "rb")


def outside_working_folder() -> AbstractContextManager[None]:
    """A stretch in the root folder of the system, for all threads of this process.

    Some libraries read settings from the working folder when they are loaded: matplotlib reads
    `matplotlibrc`, and wandb reads `wandb/settings`, which may name the server that gets the
    user's key. The root folder belongs to the administrator of the machine.

    Raises:
        OSError: the working folder is gone.
    """
    return contextlib.chdir(os.sep)
