"""Allocates the cores and GPUs of one machine to runs, and lists its GPUs."""

from __future__ import annotations

import re
import subprocess
import time
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from filelock import FileLock, Timeout

from advsweep.sweep.executors.base import Resources

MEMORY_SECONDS = 2.0
"""Interval between two readings of the devices' free memory."""
SPARE = 0.1
"""The fraction of a share of memory that may be in use: drivers and contexts need some."""

_ROUNDING = 1e-9


@dataclass(frozen=True, eq=False)
class Slot:
    """The cores of one run, and its devices by name."""

    cores: tuple[int, ...]
    devices: tuple[str, ...] = ()


def room(devices: int, gpus: float) -> int:
    """Returns how many runs with `gpus` each fit on so many devices."""
    if gpus >= 1:
        return devices // int(gpus)
    return devices * int(1 / gpus + _ROUNDING)


def pick(
    devices: Sequence[Device], loads: Mapping[str, float], gpus: float
) -> tuple[str, ...] | None:
    """Returns the devices for one more run; None if it does not fit now.

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
        if loads.get(device.name, 0.0) + share <= 1 + _ROUNDING and _is_free(device, share)
    ]
    fitting.sort(key=lambda device: loads.get(device.name, 0.0))
    if len(fitting) < number:
        return None
    return tuple(device.name for device in fitting[:number])


def _is_free(device: Device, share: float) -> bool:
    if device.memory is None or device.free is None:
        return True
    return device.free >= (1 - SPARE) * share * device.memory


class CorePool:
    """Gives each run cores of its own as long as there are enough.

    A lock file marks a core as used, so that another sweep of this user takes others. If all are
    used, they are shared. A lock ends with its process.
    """

    def __init__(self, cores: Sequence[int], folder: Path) -> None:
        self._folder = folder
        self._users = Counter(dict.fromkeys(cores, 0))
        self._locks: dict[int, FileLock] = {}

    def take(self, number: int) -> tuple[int, ...]:
        """Takes the least used cores: free ones first, then those of other sweeps."""
        least = sorted(self._users, key=self._users.__getitem__)
        own: list[int] = []
        for core in least:
            if len(own) < number and self._users[core] == 0 and self._lock(core):
                own.append(core)
        chosen = tuple((own + [core for core in least if core not in own])[:number])
        self._users.update(chosen)
        return tuple(sorted(chosen))

    def give_back(self, cores: Iterable[int]) -> None:
        for core in cores:
            self._users[core] -= 1
            if self._users[core] == 0 and core in self._locks:
                self._locks.pop(core).release()

    def _lock(self, core: int) -> bool:
        lock = FileLock(self._folder / f"core-{core}.lock")
        try:
            self._folder.mkdir(parents=True, exist_ok=True)
            lock.acquire(blocking=False)
        except Timeout:
            return False
        except OSError:
            return True  # without a writable folder, other sweeps are ignored
        self._locks[core] = lock
        return True


class SlotAllocator:
    """Allocates cores and devices, to each run as much as its sweep configures.

    Args:
        read_devices: returns the devices with their free memory.
    """

    def __init__(
        self, resources: Resources, cores: CorePool, read_devices: Callable[[], Sequence[Device]]
    ) -> None:
        self._resources = resources
        self._cores = cores
        self._read_devices = read_devices
        self._devices: Sequence[Device] = ()
        self._devices_read = float("-inf")
        self._taken: set[Slot] = set()

    def take(self) -> Slot | None:
        """Allocates a slot for one more run; returns None if there is no room now."""
        devices: tuple[str, ...] | None = ()
        if self._resources.gpus:
            devices = self._pick()
        if devices is None:
            return None
        slot = Slot(self._cores.take(self._resources.cpus), devices)
        self._taken.add(slot)
        return slot

    def give_back(self, slot: Slot) -> None:
        """Frees a slot; does nothing if it is free already."""
        if slot in self._taken:
            self._taken.remove(slot)
            self._cores.give_back(slot.cores)

    def are_empty(self) -> bool:
        """Returns whether nothing is allocated."""
        return not self._taken

    def _pick(self) -> tuple[str, ...] | None:
        if time.monotonic() - self._devices_read >= MEMORY_SECONDS:
            self._devices, self._devices_read = self._read_devices(), time.monotonic()
        gpus = self._resources.gpus
        counts = Counter(name for slot in self._taken for name in slot.devices)
        loads = {name: count * min(gpus, 1.0) for name, count in counts.items()}
        return pick(self._devices, loads, gpus)


VISIBLE = "CUDA_VISIBLE_DEVICES"
TIMEOUT_SECONDS = 60.0

_MEMORY = ("--query-gpu=uuid,memory.total,memory.free", "--format=csv,noheader,nounits")
_UUID = re.compile(r"\(UUID: (\S+)\)")


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


@dataclass(frozen=True)
class Gpu:
    """A GPU as nvidia-smi lists it, with its MIG slices."""

    device: Device
    slices: Sequence[Device] = ()

    def usable(self) -> Sequence[Device]:
        """Returns what CUDA programs can use: the slices, if there are any."""
        return self.slices or (self.device,)


def visible_devices(environment: Mapping[str, str]) -> list[Device]:
    """Returns the devices that a process may use; none without nvidia-smi."""
    listing = _nvidia_smi("-L")
    gpus = parse(listing, _nvidia_smi(*_MEMORY)) if listing else []
    return select(gpus, environment.get(VISIBLE))


def parse(listing: str, memory: str) -> list[Gpu]:
    """Parses the output of `nvidia-smi -L`, and a table of UUID, total and free memory."""
    rows = [[cell.strip() for cell in line.split(",")] for line in memory.splitlines()]
    sizes = {row[0]: row[1:] for row in rows}
    gpus: list[Gpu] = []
    for line in listing.splitlines():
        found = _UUID.search(line)
        if found is None:
            continue
        uuid = found[1]
        if line[0].isspace():
            gpus[-1] = Gpu(gpus[-1].device, (*gpus[-1].slices, Device(uuid)))
        else:
            numbers = [int(cell) if cell.isdigit() else None for cell in sizes.get(uuid, ())]
            gpus.append(Gpu(Device(uuid, *numbers)))
    return gpus


def select(gpus: Sequence[Gpu], visible: str | None) -> list[Device]:
    """Returns the devices in `CUDA_VISIBLE_DEVICES`, by the rules of CUDA.

    Its entries are indices or prefixes of UUIDs, up to the first that does not exist. They are
    kept as they are: an index means the same to a run and to its parent. The memory of an index
    is that of nvidia-smi's device of the same index, which is right if all GPUs are alike or
    `CUDA_DEVICE_ORDER` is `PCI_BUS_ID`.
    """
    if visible is None:
        return [device for gpu in gpus for device in gpu.usable()]
    known = [device for gpu in gpus for device in (gpu.device, *gpu.slices)]
    chosen: list[Device] = []
    for entry in (part.strip() for part in visible.split(",")):
        if entry.isdecimal():
            found = [gpu.device for gpu in gpus[int(entry) :][:1]]
        else:
            found = [device for device in known if entry and device.name.startswith(entry)]
        if not found:
            break
        chosen.append(Device(entry, found[0].memory, found[0].free))
    return _distinct(chosen)


def _distinct(devices: Iterable[Device]) -> list[Device]:
    return list({device.name: device for device in devices}.values())


def _nvidia_smi(*arguments: str) -> str:
    try:
        done = subprocess.run(
            ["nvidia-smi", *arguments],
            capture_output=True,
            text=True,
            check=False,
            timeout=TIMEOUT_SECONDS,
        )
    except (OSError, subprocess.TimeoutExpired):
        return ""
    return done.stdout if done.returncode == 0 else ""
