"""Room on the disk for a run's last words."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from advsweep.private_files import make_private_folder, open_private

RESERVED_BYTES = 512 * 1024


class Reserve:
    """A file of no use but its size, given up when the disk is full.

    A run that fails since the disk is full could not say so either: its record needs room.
    """

    def __init__(self, directory: Path) -> None:
        self._path = directory / "reserve"

    @contextmanager
    def held(self) -> Iterator[None]:
        """The stretch for which the room is kept, where there is any."""
        with contextlib.suppress(OSError):
            make_private_folder(self._path.parent)
            # Made anew: an old one may be a link in a folder that somebody else has made.
            self.release()
            with open_private(self._path, "xb") as file:
                file.write(bytes(RESERVED_BYTES))
        try:
            yield
        finally:
            self.release()

    def release(self) -> None:
        """Makes room."""
        self._path.unlink(missing_ok=True)
