"""The books of one machine: which cores and which parts of its GPUs are given out."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from filelock import FileLock, Timeout

from advsweep.sweep.executors.devices import Device
from advsweep.sweep.settings import Resources

LOOK_SECONDS = 2.0
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


class Cores:
    """Cores, each for one run as long as there are enough.

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


class Slots:
    """Gives out cores and devices, to each run as much as its sweep says.

    Args:
        look: tells the devices and how much of their memory is free.
    """

    def __init__(
        self, resources: Resources, cores: Cores, look: Callable[[], Sequence[Device]]
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
        if time.monotonic() - self._looked >= LOOK_SECONDS:
            self._devices, self._looked = self._look(), time.monotonic()
        gpus = self._resources.gpus
        counts = Counter(name for slot in self._taken for name in slot.devices)
        loads = {name: count * min(gpus, 1.0) for name, count in counts.items()}
        return pick(self._devices, loads, gpus)
