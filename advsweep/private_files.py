"""Files and folders that only their owner may read, whatever the umask is.

Stores and runs' folders hold prompts, answers and weights, and the machine may have other users.
What exists already keeps its mode: a folder that a group shares stays shared.
"""

from __future__ import annotations

import contextlib
import os
from pathlib import Path
from typing import IO, Any

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
