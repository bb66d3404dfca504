"""GPUs of this machine: which there are, and which of them, or which share of one, a run gets."""

from __future__ import annotations

import math
import os
import subprocess
import time
import warnings
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, replace

from advsweep.errors import AdvsweepWarning, counted
from advsweep.machine import output_of
from advsweep.sweep.executors.reservations import GpuTurns, Reservation

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
        key: the one of the two that means the same in every process.
    """

    name: str
    memory: int | None = None
    free: int | None = None
    uuid: str = ""

    @property
    def key(self) -> str:
        return self.uuid or self.name


@dataclass(frozen=True)
class Allocation:
    """The devices of a run, and what keeps other processes from them."""

    devices: Sequence[Device]
    reservation: Reservation

    @property
    def keys(self) -> list[str]:
        """The names of the devices that mean the same in every process."""
        return [device.key for device in self.devices]

    def variables(self) -> dict[str, str]:
        """Return the variables that show a process these devices alone."""
        names = ",".join(device.name for device in self.devices)
        # An index is that of nvidia-smi then, and so of the device that was reserved.
        return {VISIBLE: names, "CUDA_DEVICE_ORDER": "PCI_BUS_ID"}


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
    They are kept as they are: an index means the same to a run and to its parent. It is that of
    nvidia-smi, in the order of the PCI bus, which runs are told (`CUDA_DEVICE_ORDER`).

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
        devices: those that there are now.
        taken: number of runs of this sweep on each device, by its key.
    """

    def __init__(self, gpus: float) -> None:
        self._gpus = gpus
        self._read = -math.inf
        self._gone: set[str] = set()
        self._turns = GpuTurns()
        self.devices: Sequence[Device] = ()
        self.taken: Counter[str] = Counter()

    @property
    def share(self) -> float:
        """The share of each of its devices that a run gets."""
        return min(self._gpus, 1.0)

    def take(self) -> Allocation | None:
        """Return the devices for one more run; None if there is no room now.

        Shares of a device never exceed the whole, other sweeps included. All but `SPARE` of the
        memory of the run's share must be free, whichever processes use the device. The least
        loaded devices come first. While another sweep waits for a device, this one takes no more
        than its part of them.

        Raises:
            ConfigError: devices cannot be reserved.
        """
        # nvidia-smi takes up to a second, and a scheduler asks twenty times a second.
        if time.monotonic() - self._read >= MEMORY_SECONDS:
            self.read()
        number = max(1, int(self._gpus))
        fitting = [device for device in self.devices if self._has_room(device)]
        fitting.sort(key=lambda device: self.taken[device.key])
        allocation = self._reserve([device for device in fitting if self._may_take(device)], number)
        for device in self.devices:
            turns = self._turns.of(device.key)
            if turns is not None and allocation is None:
                turns.wait()
            elif turns is not None:
                turns.stop_waiting()
        return allocation

    def _may_take(self, device: Device) -> bool:
        """Return whether it is the turn of this sweep; its first run always may."""
        turns = self._turns.of(device.key)
        held = self.taken.total() * self.share
        return not held or turns is None or turns.have_come(held, self._gpus, len(self.devices))

    def read(self) -> None:
        """Read which devices there are, and say once which are gone."""
        before = {device.key for device in self.devices}
        self.devices = visible_devices()
        self._read = time.monotonic()
        now = {device.key for device in self.devices}
        self._gone -= now
        gone = sorted(before - now - self._gone)
        self._gone.update(gone)
        if gone:
            left = counted(len(now), "GPU")
            warnings.warn(
                f"{', '.join(gone)}: nvidia-smi lists it no longer; {left} left; runs that fail on "
                "it are tried again where there is room",
                AdvsweepWarning,
                stacklevel=2,
            )

    def lost(self, allocation: Allocation) -> list[str]:
        """Return the devices of a run that are gone, which is no fault of the run."""
        self.read()
        return [key for key in allocation.keys if key in self._gone]

    def _has_room(self, device: Device) -> bool:
        """Return whether one more run fits on a device, by its shares and its free memory."""
        if (self.taken[device.key] + 1) * self.share > 1 + _ROUNDING:
            return False
        if device.memory is None or device.free is None:
            return True
        return device.free >= (1 - SPARE) * self.share * device.memory

    def _reserve(self, devices: Sequence[Device], number: int) -> Allocation | None:
        """Reserve shares of the first of some devices that no other process has."""
        chosen: list[Device] = []
        reservation = Reservation()
        for device in devices:
            if len(chosen) < number and reservation.add(device.key, self.share):
                chosen.append(device)
        if len(chosen) < number:
            reservation.release()
            return None
        allocation = Allocation(chosen, reservation)
        self.taken.update(allocation.keys)
        return allocation

    def give_back(self, allocation: Allocation) -> None:
        """Take the devices of a run back."""
        self.taken.subtract(allocation.keys)
        allocation.reservation.release()

    def close(self) -> None:
        """Leave the devices to others; runs keep theirs."""
        self._turns.close()
