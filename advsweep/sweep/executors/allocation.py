"""Allocates the GPUs of one machine to runs, and lists them."""

from __future__ import annotations

import math
import os
import subprocess
import time
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

MEMORY_SECONDS = 2.0
"""Interval between two readings of the devices' free memory."""
SPARE = 0.1
"""The fraction of a share of memory that may be in use: drivers and contexts need some."""

_ROUNDING = 1e-9


def room(devices: int, gpus: float) -> int:
    """Return how many runs with `gpus` each fit on so many devices."""
    if gpus >= 1:
        return devices // int(gpus)
    return devices * int(1 / gpus + _ROUNDING)


def pick(
    devices: Sequence[Device], loads: Mapping[str, float], gpus: float
) -> tuple[str, ...] | None:
    """Return the devices for one more run; None if it does not fit now.

    Shares of a device never exceed the whole. All but `SPARE` of the memory of the run's share
    must be free, whichever processes use the device. The least loaded devices come first.

    Args:
        loads: the allocated share of each device, by name; 0 without an entry.
        gpus: a share of one device below 1, or a number of whole devices.
    """
    share, number = min(gpus, 1.0), max(1, int(gpus))
    fitting = [
        device
        for device in devices
        if loads.get(device.name, 0.0) + share <= 1 + _ROUNDING
        and (
            device.memory is None
            or device.free is None
            or device.free >= (1 - SPARE) * share * device.memory
        )
    ]
    fitting.sort(key=lambda device: loads.get(device.name, 0.0))
    if len(fitting) < number:
        return None
    return tuple(device.name for device in fitting[:number])


class DevicePool:
    """Gives each run of a sweep devices, or a share of one.

    Args:
        gpus: of each run; a share of one device below 1.
        read_devices: returns the devices with their free memory.
    """

    def __init__(
        self, gpus: float, read_devices: Callable[[], Sequence[Device]] | None = None
    ) -> None:
        self._gpus = gpus
        self._read_devices = read_devices or visible_devices
        self._devices: Sequence[Device] = ()
        self._read = -math.inf
        self._taken: Counter[str] = Counter()

    def take(self) -> tuple[str, ...] | None:
        """Return the devices for one more run; None if there is no room now."""
        # nvidia-smi takes up to a second, and a scheduler asks twenty times a second.
        if time.monotonic() - self._read >= MEMORY_SECONDS:
            self._devices, self._read = self._read_devices(), time.monotonic()
        loads = {name: count * min(self._gpus, 1.0) for name, count in self._taken.items()}
        devices = pick(self._devices, loads, self._gpus)
        self._taken.update(devices or ())
        return devices

    def give_back(self, devices: Sequence[str]) -> None:
        self._taken.subtract(devices)

    def is_unused(self) -> bool:
        """Return whether no run has a device."""
        return not self._taken.total()


VISIBLE = "CUDA_VISIBLE_DEVICES"
TIMEOUT_SECONDS = 60.0

_QUERY = ("--query-gpu=uuid,memory.total,memory.free", "--format=csv,noheader,nounits")


@dataclass(frozen=True)
class Device:
    """A GPU, or a MIG slice of one.

    Attributes:
        name: its name in `CUDA_VISIBLE_DEVICES`.
        memory: its size in MiB; None if unknown, as of a MIG slice.
        free: its free part in MiB; None if unknown.
    """

    name: str
    memory: int | None = None
    free: int | None = None


def visible_devices() -> list[Device]:
    """Return the devices that a process may use; none without nvidia-smi."""
    try:
        done = subprocess.run(
            ["nvidia-smi", *_QUERY],
            capture_output=True,
            text=True,
            check=True,
            timeout=TIMEOUT_SECONDS,
        )
    except (OSError, subprocess.SubprocessError):
        return []
    gpus = []
    for line in done.stdout.splitlines():
        name, *sizes = (cell.strip() for cell in line.split(","))
        gpus.append(Device(name, *(int(size) if size.isdigit() else None for size in sizes)))
    return select(gpus, os.environ.get(VISIBLE))


def select(gpus: Sequence[Device], visible: str | None) -> list[Device]:
    """Return the devices in `CUDA_VISIBLE_DEVICES`, by the rules of CUDA.

    Its entries are indices, prefixes of UUIDs or MIG slices, up to the first that does not exist.
    They are kept as they are: an index means the same to a run and to its parent. The memory of
    an index is that of nvidia-smi's device of the same index, which is right if all GPUs are
    alike or `CUDA_DEVICE_ORDER` is `PCI_BUS_ID`.

    Departures: MIG slices count only if they are named there.
    """
    if visible is None:
        return list(gpus)
    chosen: dict[str, Device] = {}
    for entry in (part.strip() for part in visible.split(",")):
        found = gpus[int(entry) :][:1] if entry.isdecimal() else ()
        if not entry.isdecimal():
            found = [gpu for gpu in gpus if entry and gpu.name.startswith(entry)]
        if entry.startswith("MIG-") and gpus:
            found = [Device(entry)]
        if not found:
            break
        chosen[entry] = Device(entry, found[0].memory, found[0].free)
    return list(chosen.values())
