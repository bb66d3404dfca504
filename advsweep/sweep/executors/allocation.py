"""The books of one machine: which cores and which parts of its GPUs are given out."""

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
"""How often the memory of devices is looked at anew."""
SPARE = 0.1
"""The part of a share of memory that may be gone: drivers and contexts keep some of it."""

_ROUNDING = 1e-9


@dataclass(frozen=True, eq=False)
class Slot:
    """What one run is given: cores, and devices by their names."""

    cores: tuple[int, ...]
    devices: tuple[str, ...] = ()


def room(devices: int, gpus: float) -> int:
    """How many runs with `gpus` each there is room for on so many devices."""
    if gpus >= 1:
        return devices // int(gpus)
    return devices * int(1 / gpus + _ROUNDING)


def pick(
    devices: Sequence[Device], loads: Mapping[str, float], gpus: float
) -> tuple[str, ...] | None:
    """The devices for one more run; None where it does not fit at the moment.

    Shares of a device never add up to more than the whole, and the memory that goes with the
    run's share has to be free by all but `SPARE`, whoever else is on the device. The least
    loaded devices are taken first.

    Args:
        loads: what is given out of each device, by name; 0 where it has no entry.
        gpus: a share of one device below 1, or how many whole ones.
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
    """CorePool, each for one run as long as there are enough.

    A lock in a folder says that a core is in use, so that another sweep of this user takes
    others; where all are in use they are shared. The lock is gone with its process.
    """

    def __init__(self, cores: Sequence[int], folder: Path) -> None:
        self._folder = folder
        self._users = Counter(dict.fromkeys(cores, 0))
        self._locks: dict[int, FileLock] = {}

    def take(self, number: int) -> tuple[int, ...]:
        """The least used cores: those that nobody has, then those of other sweeps."""
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
            return True  # without a folder to write to, other sweeps are not seen
        self._locks[core] = lock
        return True


class SlotAllocator:
    """Gives out cores and devices, to each run as much as its sweep says.

    Args:
        look: tells the devices and how much of their memory is free.
    """

    def __init__(
        self, resources: Resources, cores: CorePool, look: Callable[[], Sequence[Device]]
    ) -> None:
        self._resources = resources
        self._cores = cores
        self._look = look
        self._devices: Sequence[Device] = ()
        self._looked = float("-inf")
        self._taken: set[Slot] = set()

    def take(self) -> Slot | None:
        """A slot for one more run; None where there is no room at the moment."""
        devices: tuple[str, ...] | None = ()
        if self._resources.gpus:
            devices = self._pick()
        if devices is None:
            return None
        slot = Slot(self._cores.take(self._resources.cpus), devices)
        self._taken.add(slot)
        return slot

    def give_back(self, slot: Slot) -> None:
        """Takes a slot back; nothing happens where that was done before."""
        if slot in self._taken:
            self._taken.remove(slot)
            self._cores.give_back(slot.cores)

    def are_empty(self) -> bool:
        """Whether nothing is given out."""
        return not self._taken

    def _pick(self) -> tuple[str, ...] | None:
        if time.monotonic() - self._looked >= MEMORY_SECONDS:
            self._devices, self._looked = self._look(), time.monotonic()
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
        name: what `CUDA_VISIBLE_DEVICES` calls it.
        memory: all of it, in MiB; None where that is not told, as of a MIG slice.
        free: what nobody has of it at the moment, in MiB; None likewise.
    """

    name: str
    memory: int | None = None
    free: int | None = None


@dataclass(frozen=True)
class Gpu:
    """A GPU as nvidia-smi lists it: itself, and the MIG slices that it is divided into."""

    device: Device
    slices: Sequence[Device] = ()

    def usable(self) -> Sequence[Device]:
        """What CUDA programs can have of it: its slices, where there are any."""
        return self.slices or (self.device,)


def visible_devices(environment: Mapping[str, str]) -> list[Device]:
    """The devices that a process with this environment may use; none without nvidia-smi."""
    listing = _nvidia_smi("-L")
    gpus = parse(listing, _nvidia_smi(*_MEMORY)) if listing else []
    return select(gpus, environment.get(VISIBLE))


def parse(listing: str, memory: str) -> list[Gpu]:
    """Reads what `nvidia-smi -L` lists, and a table of UUID, total and free memory."""
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
    """The devices that `CUDA_VISIBLE_DEVICES` leaves, read as CUDA reads it.

    Its entries are indices, or the beginnings of UUIDs, up to the first that does not exist.
    They are kept as they are: an index means to a run what it means to its parent. Its memory
    is taken to be that of nvidia-smi's device of the same index, which is right where all GPUs
    are alike or `CUDA_DEVICE_ORDER` is `PCI_BUS_ID`.
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
