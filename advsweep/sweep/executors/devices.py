"""GPUs of this machine: which there are, and which of them, or which share of one, a run gets."""

from __future__ import annotations

import math
import os
import subprocess
import time
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, replace

from advsweep.machine import output_of
from advsweep.sweep.executors.reservations import Reservation, reserve

VISIBLE = "CUDA_VISIBLE_DEVICES"
TIMEOUT_SECONDS = 60.0
# Interval between two readings of the devices' free memory.
MEMORY_SECONDS = 2.0
# The fraction of a share of memory that may be in use: drivers and contexts need some.
SPARE = 0.1

_QUERY = ("--query-gpu=uuid,memory.total,memory.free", "--format=csv,noheader,nounits")
_ROUNDING = 1e-9


@dataclass(frozen=True)
class Device:
    """A GPU, or a MIG slice of one.

    Attributes:
        name: its name in `CUDA_VISIBLE_DEVICES`.
        memory: its size in MiB; None if unknown, as of a MIG slice.
        free: its free part in MiB; None if unknown.
        uuid: its name in every process, with any value of that variable; empty: `name`.
    """

    name: str
    memory: int | None = None
    free: int | None = None
    uuid: str = ""


@dataclass(frozen=True)
class Allocation:
    """The devices of a run by their names, and what keeps other processes from them."""

    devices: tuple[str, ...]
    reservation: Reservation


def visible_devices() -> list[Device]:
    """Return the devices that a process may use; none without nvidia-smi."""
    try:
        listed = output_of("nvidia-smi", *_QUERY, seconds=TIMEOUT_SECONDS)
    except (OSError, subprocess.SubprocessError):
        return []
    gpus = [_read_device(line) for line in listed.splitlines()]
    return select(gpus, os.environ.get(VISIBLE))


def _read_device(line: str) -> Device:
    """Read a line of nvidia-smi; a number that it does not know, such as [N/A], is None."""
    name, *cells = (cell.strip() for cell in line.split(","))
    numbers = [int(cell) if cell.isdigit() else None for cell in cells]
    memory, free, *_ = [*numbers, None, None]
    return Device(name, memory, free)


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
        device = _find_device(gpus, entry)
        if device is None:
            break
        chosen[entry] = replace(device, name=entry, uuid=device.name)
    return list(chosen.values())


def _find_device(gpus: Sequence[Device], entry: str) -> Device | None:
    """Return the device that an entry of `CUDA_VISIBLE_DEVICES` means; None without one."""
    if not entry or not gpus:
        return None
    if entry.isdecimal():
        index = int(entry)
        return gpus[index] if index < len(gpus) else None
    if entry.startswith("MIG-"):
        return Device(entry)
    return next((gpu for gpu in gpus if gpu.name.startswith(entry)), None)


def room(devices: int, gpus: float) -> int:
    """Return how many runs with `gpus` each fit on so many devices."""
    if gpus >= 1:
        return devices // int(gpus)
    return devices * int(1 / gpus + _ROUNDING)


class DevicePool:
    """Gives each run of a sweep devices, or a share of one.

    Args:
        gpus: of each run; a share of one device below 1.

    Attributes:
        taken: number of runs on each device, by its name.
    """

    def __init__(self, gpus: float) -> None:
        self._gpus = gpus
        self._devices: Sequence[Device] = ()
        self._read = -math.inf
        self.taken: Counter[str] = Counter()

    def take(self) -> Allocation | None:
        """Return the devices for one more run; None if there is no room now.

        Shares of a device never exceed the whole, other sweeps of this user included. All
        but `SPARE` of the memory of the run's share must be free, whichever processes use the
        device. The least loaded devices come first.
        """
        # nvidia-smi takes up to a second, and a scheduler asks twenty times a second.
        if time.monotonic() - self._read >= MEMORY_SECONDS:
            self._devices = visible_devices()
            self._read = time.monotonic()
        share = min(self._gpus, 1.0)
        number = max(1, int(self._gpus))
        fitting = [device for device in self._devices if self._has_room(device, share)]
        fitting.sort(key=lambda device: self.taken[device.name])
        return self._reserve(fitting, share, number)

    def _has_room(self, device: Device, share: float) -> bool:
        """Return whether one more run fits on a device, by its shares and its free memory."""
        if (self.taken[device.name] + 1) * share > 1 + _ROUNDING:
            return False
        if device.memory is None or device.free is None:
            return True
        return device.free >= (1 - SPARE) * share * device.memory

    def _reserve(self, devices: Sequence[Device], share: float, number: int) -> Allocation | None:
        """Reserve shares of the first of some devices that no other process has."""
        names: list[str] = []
        descriptors: list[int] = []
        for device in devices:
            reservation = reserve([device.uuid or device.name], share)
            if reservation is None:
                continue
            names.append(device.name)
            descriptors += reservation.descriptors
            if len(names) == number:
                self.taken.update(names)
                return Allocation(tuple(names), Reservation(descriptors))
        Reservation(descriptors).release()
        return None

    def give_back(self, allocation: Allocation) -> None:
        """Take the devices of a run back."""
        self.taken.subtract(allocation.devices)
        allocation.reservation.release()
