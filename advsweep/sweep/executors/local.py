"""Workers of this machine: processes, each on GPUs of its own; or this very process."""

from __future__ import annotations

import math
import os
import signal
import subprocess
import time
import warnings
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar

from advsweep.components import Retired
from advsweep.errors import AdvsweepWarning, ConfigError
from advsweep.machine import output_of, usable_cores
from advsweep.sweep.events import STOPPED
from advsweep.sweep.executors import base
from advsweep.sweep.executors.reservations import Reservation, reserve

if TYPE_CHECKING:
    from advsweep.backends.base import Run

VISIBLE = "CUDA_VISIBLE_DEVICES"
TIMEOUT_SECONDS = 60.0
# Interval between two readings of the devices' free memory.
MEMORY_SECONDS = 2.0
# The fraction of a share of memory that may be in use: drivers and contexts need some.
SPARE = 0.1

_QUERY = ("--query-gpu=uuid,memory.total,memory.free", "--format=csv,noheader,nounits")
_ROUNDING = 1e-9


@dataclass(kw_only=True)
class LocalExecutor(base.Executor):
    """Starts one process per worker, in a session of its own, with as many threads as it has cores.

    A worker trains one run at a time, or several together. Its session keeps Ctrl-C to the parent,
    which stops the workers. Its output goes to `log.txt` in the run's folder, or the first run's.

    Workers on CPUs are used again. A worker on GPUs trains one run, as CUDA gives memory back only
    when its process ends; it sees only the GPUs that it is given.
    """

    name: ClassVar[str] = "local"
    retired: ClassVar[Retired] = {"preload": (), "pin": ()}
    limits_time: ClassVar[bool] = True
    stacks: ClassVar[bool] = True

    def __post_init__(self) -> None:
        super().__post_init__()
        self._workers = base.WorkerPool()
        self._devices = DevicePool(0.0)
        self._device_count = 0

    def prepare(self, resources: base.Resources, runs: Iterable[Run]) -> None:
        super().prepare(resources, runs)
        self._devices = DevicePool(resources.gpus)
        self._device_count = len(visible_devices()) if resources.gpus else 0

    def check(self) -> None:
        cpus, gpus, cores = self.resources.cpus, self.resources.gpus, len(usable_cores())
        if cpus > cores:
            raise ConfigError(
                f"resources.cpus: expected at most {cores}, the cores that this process may use, "
                f"got {cpus}"
            )
        if gpus and not room(self._device_count, gpus):
            raise ConfigError(
                f"resources.gpus: expected at most {self._device_count}, the GPUs that nvidia-smi "
                f"lists and {VISIBLE} leaves, got {gpus:g}"
            )

    def capacity(self) -> int:
        if self.jobs is not None:
            return self.jobs
        fitting = len(usable_cores()) // self.resources.cpus
        if self.resources.gpus:
            fitting = min(fitting, room(self._device_count, self.resources.gpus))
        return max(1, fitting)

    def start(self, job: base.Job) -> base.Handle | None:
        environment = os.environ | base.worker_environment(self.resources.cpus, job.store_url)
        if not self.resources.gpus:
            # A run without GPUs must not take memory on those of another.
            return self._workers.start(job, {**environment, VISIBLE: ""})
        allocation = self._devices.take()
        if allocation is None:
            # With a run of ours there, room comes when it ends; else only others can make it.
            if not self._devices.taken.total():
                share = f"{min(self.resources.gpus, 1):.0%} of its memory"
                warnings.warn(
                    f"no run can start: other processes leave no GPU with {share} free; waiting",
                    AdvsweepWarning,
                    stacklevel=2,
                )
            return None
        environment[VISIBLE] = ",".join(allocation.devices)
        try:
            process = base.start_worker(
                job, environment, inherited=allocation.reservation.descriptors
            )
        except OSError:
            # No handle will ever give them back.
            self._devices.give_back(allocation)
            raise
        return DeviceHandle(process, allocation, self._devices)

    def close(self) -> None:
        self._workers.close()


@dataclass
class DeviceHandle(base.ProcessHandle):
    """A child process on devices of its own."""

    process: subprocess.Popen[bytes]
    allocation: Allocation | None
    pool: DevicePool

    def poll(self) -> int | None:
        code = super().poll()
        if code is not None and self.allocation is not None:
            # Not before the process is gone: CUDA frees its memory only then.
            self.pool.give_back(self.allocation)
            self.allocation = None
        return code


@dataclass(frozen=True)
class Device:
    """A GPU, or a MIG slice of one.

    Attributes:
        name: its name in `CUDA_VISIBLE_DEVICES`.
        memory: its size in MiB; None if unknown, as of a MIG slice.
        free: its free part in MiB; None if unknown.
        uuid: what it is called in every process, whatever these variables are; empty: its name.
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
    gpus = []
    for line in listed.splitlines():
        name, *cells = (cell.strip() for cell in line.split(","))
        memory, free, *_ = [int(cell) if cell.isdigit() else None for cell in cells] + [None, None]
        gpus.append(Device(name, memory, free))
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
        chosen[entry] = Device(entry, found[0].memory, found[0].free, found[0].name)
    return list(chosen.values())


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

        Shares of a device never exceed the whole, those of other sweeps of this user included. All
        but `SPARE` of the memory of the run's share must be free, whichever processes use the
        device. The least loaded devices come first.
        """
        # nvidia-smi takes up to a second, and a scheduler asks twenty times a second.
        if time.monotonic() - self._read >= MEMORY_SECONDS:
            self._devices, self._read = visible_devices(), time.monotonic()
        share, number = min(self._gpus, 1.0), max(1, int(self._gpus))
        fitting = []
        for device in self._devices:
            size, free = device.memory, device.free
            is_free = size is None or free is None or free >= (1 - SPARE) * share * size
            if is_free and (self.taken[device.name] + 1) * share <= 1 + _ROUNDING:
                fitting.append(device)
        fitting.sort(key=lambda device: self.taken[device.name])
        return self._reserve(fitting, share, number)

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


@dataclass(kw_only=True)
class DebugExecutor(base.Executor):
    """Completes a run in this process before `start` returns. A crash ends the sweep.

    Nothing is allocated: a run has the cores and GPUs of this process.
    """

    name: ClassVar[str] = "debug"
    stacks: ClassVar[bool] = True

    def capacity(self) -> int:
        return 1

    def start(self, job: base.Job) -> base.Handle:
        from advsweep.store import Owner, open_store
        from advsweep.sweep.retry_policy import store_patience
        from advsweep.sweep.worker.main import work_on

        patience = store_patience()
        with open_store(job.store_url, create=False, patience=patience, wait=True) as store:
            run_ids = [job.run_id, *job.others]
            code = work_on(store, run_ids, job.evaluations, None, holder=Owner.current())
        if code == STOPPED:
            # The signal stopped the run alone; the scheduler must receive it as well.
            signal.raise_signal(signal.SIGTERM)
        return EndedHandle(code)


@dataclass(frozen=True)
class EndedHandle(base.Handle):
    """The handle of a run that has ended."""

    code: int

    def poll(self) -> int | None:
        return self.code

    def stop(self) -> None:
        """Does nothing."""

    def kill(self) -> None:
        """Does nothing."""
