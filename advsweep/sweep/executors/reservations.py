"""Shares of GPUs, reserved across the processes of this machine.

Two sweeps that count only what they gave out themselves would put two runs on one GPU: of other
processes nvidia-smi tells the memory that is in use, which a training takes up to a minute to fill.
Here each device has a file, and a run that gets a share of it locks that share of the file's bytes.
The lock belongs to the open file, which the run's process has too: it is there until both the
scheduler and the run are gone, and the kernel frees it at once, however they end.

The files lie in /tmp/advsweep-UID, or `$ADVSWEEP_RUNTIME`, which is the same for a shell and for
cron: sweeps of other users are not seen.
"""

from __future__ import annotations

import fcntl
import os
import re
import struct
from collections.abc import Sequence
from pathlib import Path

from advsweep.errors import ConfigError
from advsweep.local_files import FILE_MODE, make_private_folder

# Bytes of a device's file that stand for the whole device.
_WHOLE = 1000

_NO_NAME = re.compile(r"[^\w.-]")


class Reservation:
    """Shares of devices that a run has; `descriptors` keep them and are handed to its process."""

    def __init__(self, descriptors: Sequence[int]) -> None:
        self.descriptors = tuple(descriptors)

    def release(self) -> None:
        """Close this process's descriptors; the run's own process may still have them."""
        for descriptor in self.descriptors:
            os.close(descriptor)
        self.descriptors = ()


def reserve(devices: Sequence[str], share: float) -> Reservation | None:
    """Reserve a share of each of some devices; return None if one has too little left.

    Args:
        devices: their UUIDs, or other names that mean the same device in every process.
        share: of each device, above 0 and at most 1.
    """
    descriptors: list[int] = []
    for device in devices:
        descriptor = _lock_share(device, share)
        if descriptor is None:
            Reservation(descriptors).release()
            return None
        descriptors.append(descriptor)
    return Reservation(descriptors)


def _lock_share(device: str, share: float) -> int | None:
    """Return an open file with a lock on a share of the device; None if there is none left."""
    folder = _folder()
    # A name of nvidia-smi or of the environment is no path.
    path = folder / f"{_NO_NAME.sub('_', device)}.lock"
    descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW, FILE_MODE)
    size = int(_WHOLE * share)
    for part in range(_WHOLE // size):
        if _lock_bytes(descriptor, start=part * size, length=size):
            return descriptor
    os.close(descriptor)
    return None


def _folder() -> Path:
    """Make and return the folder of the devices' files.

    Raises:
        ConfigError: another user has made it.
    """
    named = os.environ.get("ADVSWEEP_RUNTIME")
    folder = Path(named) if named else Path("/tmp", f"advsweep-{os.getuid()}")
    make_private_folder(folder)
    if folder.stat().st_uid != os.getuid():
        raise ConfigError(
            f"{folder}: expected a folder of this user for the locks of GPUs, got another's; name "
            "one with ADVSWEEP_RUNTIME=DIR"
        )
    return folder


def _lock_bytes(descriptor: int, *, start: int, length: int) -> bool:
    """Try to lock a range of a file for all who have this open file; return whether it worked."""
    # `struct flock`: type, whence, start, length and process. Python's own `fcntl.lockf` makes
    # locks of a process, which a run would not inherit.
    request = struct.pack("hhqqi", fcntl.F_WRLCK, os.SEEK_SET, start, length, 0)
    try:
        fcntl.fcntl(descriptor, fcntl.F_OFD_SETLK, request)
    except (BlockingIOError, PermissionError):
        return False
    return True
