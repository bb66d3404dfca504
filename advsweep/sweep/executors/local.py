"""Workers that are processes of this machine, each on GPUs that no other run has."""

from __future__ import annotations

import os
import subprocess
import warnings
from collections.abc import Iterable
from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar

from advsweep.components import Retired
from advsweep.errors import AdvsweepWarning, ConfigError
from advsweep.machine import memory_bytes, usable_cores
from advsweep.sweep.executors.base import Executor, Handle, Job, Resources
from advsweep.sweep.executors.devices import (
    VISIBLE,
    Allocation,
    DevicePool,
    room,
    visible_devices,
)
from advsweep.sweep.executors.processes import (
    ProcessHandle,
    WorkerPool,
    start_worker,
    worker_environment,
)
from advsweep.sweep.executors.sizes import show_size

if TYPE_CHECKING:
    from advsweep.backends.base import Run


@dataclass(kw_only=True)
class LocalExecutor(Executor):
    """Starts one process per worker, in a new session, with as many threads as it has cores.

    A worker trains one run at a time, or several together. Its session keeps Ctrl-C to the parent,
    which stops the workers. Its output goes to `log.txt` in the run's folder, or the first run's.

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
        environment = os.environ | worker_environment(self.resources.cpus, job.store_url)
        if not self.resources.gpus:
            # A run without GPUs must not take memory on the GPUs of another.
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
            process = start_worker(job, environment, inherited=allocation.reservation.descriptors)
        except OSError:
            # No handle will ever give them back.
            self._devices.give_back(allocation)
            raise
        return DeviceHandle(process, allocation, self._devices)

    def close(self) -> None:
        self._workers.close()


@dataclass
class DeviceHandle(ProcessHandle):
    """A child process on devices that no other run has."""

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
