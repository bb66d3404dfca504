"""Workers that are processes of this machine, each on GPUs that no other run has."""

from __future__ import annotations

import os
import time
import warnings
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, ClassVar

from advsweep.components import Retired
from advsweep.errors import AdvsweepWarning, ConfigError, counted, first_of
from advsweep.machine import memory_bytes, reserved_variables, usable_cores
from advsweep.sweep.executors.base import Executor, Handle, Job, Resources
from advsweep.sweep.executors.devices import (
    VISIBLE,
    Allocation,
    DevicePool,
    room,
    visible_devices,
)
from advsweep.sweep.executors.lock_files import Holder
from advsweep.sweep.executors.processes import (
    ProcessHandle,
    WorkerPool,
    start_worker,
    worker_environment,
)
from advsweep.sweep.executors.reservations import CorePool, RunCores, all_reserved, reserved_gpu
from advsweep.sweep.executors.sizes import show_size

if TYPE_CHECKING:
    from advsweep.backends.base import Run

# Time after which a sweep ends whose runs need more GPUs than there are left.
GONE_SECONDS = 600.0


@dataclass(kw_only=True)
class LocalExecutor(Executor):
    """Starts one process per worker, in a new session, with as many threads as it has cores.

    A worker trains one run at a time, or several together. Its session keeps Ctrl-C to the parent,
    which stops the workers. Its output goes to `log.txt` in the run's folder, or the first run's.

    GPUs and cores are reserved across processes, so that two sweeps share a machine: a GPU has at
    most one run, or shares that add up to one; with `jobs: null` runs start on free cores alone.

    Workers on CPUs are used again. A worker on GPUs trains one run, as CUDA gives memory back only
    when its process ends; it sees only the GPUs that it is given.
    """

    name: ClassVar[str] = "local"
    retired: ClassVar[Retired] = {"preload": (), "pin": ()}
    limits_time: ClassVar[bool] = True
    limits_memory: ClassVar[bool] = True
    stacks: ClassVar[bool] = True

    def __post_init__(self) -> None:
        super().__post_init__()
        self._workers = WorkerPool()
        self._devices = DevicePool(0.0)
        self._device_count = 0
        self._cores = CorePool()
        # Whether the cores of other sweeps cannot be seen.
        self._is_apart = False
        # The kinds of reasons to wait that were said.
        self._said: set[str] = set()
        # Since when there are too few GPUs for a run.
        self._short_since: float | None = None

    def prepare(self, resources: Resources, runs: Iterable[Run]) -> None:
        super().prepare(resources, runs)
        self._devices = DevicePool(resources.gpus)
        self._device_count = len(visible_devices()) if resources.gpus else 0

    def check(self) -> None:
        cpus = self.resources.cpus
        gpus = self.resources.gpus
        cores = len(usable_cores())
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
        limit = self.resources.memory_bytes
        if limit is not None and limit > memory_bytes():
            raise ConfigError(
                f"resources.memory: expected at most {show_size(memory_bytes())}, the memory of "
                f"this machine, got {self.resources.memory}"
            )

    def capacity(self) -> int:
        if self.jobs is not None:
            return self.jobs
        fitting = len(usable_cores()) // self.resources.cpus
        if self.resources.gpus:
            fitting = min(fitting, room(self._device_count, self.resources.gpus))
        if self.resources.memory_bytes is not None:
            fitting = min(fitting, memory_bytes() // self.resources.memory_bytes)
        return max(1, fitting)

    def start(self, job: Job) -> Handle | None:
        if self.resources.gpus:
            return self._start_on_gpus(job)
        cores = self._take_cores(only_free=self.chosen_jobs is None)
        if cores is None:
            self._say_once("cores", self._cores_in_use)
            return None
        environment = os.environ | worker_environment(self.resources.cpus, job.store_url)
        try:
            # A run without GPUs must not take memory on the GPUs of another.
            worker = self._workers.start(job, {**environment, VISIBLE: ""})
        except OSError:
            # No handle will ever give them back.
            self._cores.give_back(cores)
            raise
        self._cores.describe(cores, _holder(job, worker))
        return ReservedHandle(worker, partial(self._cores.give_back, cores))

    def _start_on_gpus(self, job: Job) -> Handle | None:
        allocation = self._devices.take()
        if allocation is None:
            self._wait_for_gpus()
            return None
        self._short_since = None
        # Never waits for cores: a GPU without a run costs more than a core with two.
        cores = self._take_cores(only_free=False) or RunCores([])
        environment = os.environ | worker_environment(self.resources.cpus, job.store_url)
        descriptors = allocation.reservation.descriptors
        environment |= self.resources.variables() | allocation.variables()
        environment |= reserved_variables(descriptors)
        try:
            worker = ProcessHandle(start_worker(job, environment, inherited=descriptors))
        except OSError:
            self._give_back(allocation, cores)
            raise
        holder = _holder(job, worker)
        allocation.reservation.describe(holder)
        # From now on the run's process has them.
        allocation.reservation.release()
        self._cores.describe(cores, holder)
        return ReservedHandle(
            worker,
            partial(self._give_back, allocation, cores),
            partial(self._lost_devices, allocation),
        )

    def _give_back(self, allocation: Allocation, cores: RunCores) -> None:
        self._devices.give_back(allocation)
        self._cores.give_back(cores)

    def _lost_devices(self, allocation: Allocation) -> str:
        """Return that devices of a run are gone; empty if they are there."""
        lost = self._devices.lost(allocation)
        return f"its GPU is gone: nvidia-smi lists {', '.join(lost)} no longer" if lost else ""

    def _take_cores(self, *, only_free: bool) -> RunCores | None:
        """Reserve the cores of one more run; return None if it has to wait for them."""
        try:
            return self._cores.take(
                usable_cores(), self.resources.cpus, only_free=only_free and not self._is_apart
            )
        except ConfigError as error:
            if not self._is_apart:
                _warn(f"{error}; cores are not shared with other sweeps")
            self._is_apart = True
            return RunCores([])

    def _wait_for_gpus(self) -> None:
        """Say once why no run can start.

        Raises:
            ConfigError: there are too few GPUs for a run, and have been for a long time.
        """
        # With a run of ours there, room comes when it ends; else only others can make it.
        is_idle = not self._devices.taken.total()
        if not room(len(self._devices.devices), self.resources.gpus):
            now = time.monotonic()
            self._short_since = self._short_since or now
            self._say_once("few", self._gpus_missing)
            if is_idle and now - self._short_since > GONE_SECONDS:
                raise ConfigError(
                    f"{self._gpus_missing()}; none came back within {GONE_SECONDS / 60:g} minutes"
                )
            return
        self._short_since = None
        self._say_once("gpus", self._gpus_in_use)
        if is_idle and "gpus" not in self._said:
            self._say_once("memory", self._memory_in_use)

    def _gpus_missing(self) -> str:
        """Return that a run needs more GPUs than there are left."""
        listed = counted(len(self._devices.devices), "GPU")
        return f"nvidia-smi lists {listed}, and a run needs {self.resources.gpus:g}"

    def _gpus_in_use(self) -> str:
        """Return who else has GPUs; empty if nobody has."""
        holders = [
            f"{device.name}: {part.holder.describe()}"
            for device in self._devices.devices
            for part in reserved_gpu(device.key)
            if part.holder.parent != os.getpid()
        ]
        if not holders:
            return ""
        return f"no GPU is free for another run: {first_of(holders, 3, '; ')}"

    def _memory_in_use(self) -> str:
        """Return that others use the memory of the GPUs."""
        share = f"{self._devices.share:.0%} of its memory"
        return f"no run can start: other processes leave no GPU with {share} free"

    def _cores_in_use(self) -> str:
        """Return who else has cores."""
        others = [
            f"{part.what}: {part.holder.describe()}"
            for part in all_reserved()
            if part.is_cores and part.holder.parent != os.getpid()
        ]
        who = f" ({first_of(others, 3, '; ')})" if others else ""
        return (
            f"other sweeps use cores of this machine{who}; --jobs N starts N runs at once, "
            "whatever others use"
        )

    def _say_once(self, kind: str, reason: Callable[[], str]) -> None:
        """Say why runs wait, once of each kind of reason."""
        if kind in self._said:
            return
        text = reason()
        if text:
            self._said.add(kind)
            _warn(f"{text}; waiting")

    def close(self) -> None:
        self._workers.close()
        self._cores.close()
        self._devices.close()


def _warn(message: str) -> None:
    warnings.warn(message, AdvsweepWarning, stacklevel=3)


def _holder(job: Job, worker: ProcessHandle) -> Holder:
    return Holder.current(pid=worker.process.pid, run=job.run_id, sweep=job.sweep)


@dataclass
class ReservedHandle(Handle):
    """A worker of this machine with a part of it, which is given back at the job's end.

    Attributes:
        give_back: called at the end, once.
        find_fault: returns why the machine is to blame for a failure, empty if it is not; None:
            the machine is never to blame.
    """

    worker: ProcessHandle
    give_back: Callable[[], None]
    find_fault: Callable[[], str] | None = None
    code: int | None = None

    def pid(self) -> int | None:
        return self.worker.pid()

    def poll(self) -> int | None:
        if self.code is None:
            self.code = self.worker.poll()
            if self.code is not None:
                # Not before the process is gone: CUDA frees its memory only then.
                self.give_back()
        return self.code

    def stop(self) -> None:
        if self.poll() is None:
            self.worker.stop()

    def kill(self) -> None:
        if self.poll() is None:
            self.worker.kill()

    def machine_fault(self) -> str:
        return "" if self.find_fault is None else self.find_fault()
