"""Processes of this machine, each on cores and GPUs of its own."""

from __future__ import annotations

import contextlib
import os
import platform
import subprocess
import warnings
from collections.abc import Iterable
from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar

from advsweep.components import option
from advsweep.errors import AdvsweepWarning, ConfigError
from advsweep.local_files import cache_folder, make_private_folder
from advsweep.machine import usable_cores
from advsweep.sweep.executors.allocation import (
    VISIBLE,
    CorePool,
    Device,
    Slot,
    SlotAllocator,
    room,
    visible_devices,
)
from advsweep.sweep.executors.base import (
    Executor,
    ForkedProcess,
    Handle,
    Job,
    ProcessHandle,
    Resources,
    worker_environment,
)
from advsweep.sweep.executors.forkserver import ForkServer, can_adopt

if TYPE_CHECKING:
    from advsweep.backends.base import Run

PRELOADED = (
    "advsweep.backends.build",
    "advsweep.evaluation.run_evaluator",
    "advsweep.sweep.worker.reporter",
    "advsweep.sweep.early_stopping.rules",
    "advsweep.sweep.worker.stacked",
    "advsweep.sweep.worker.main",
)
"""The modules that every worker imports, whatever its run."""


@dataclass(kw_only=True)
class LocalExecutor(Executor):
    """Starts one process per worker, in a session of its own, on as many cores as it has threads.

    A worker trains one run, or several together. Its session keeps Ctrl-C to the parent, which
    stops the workers. Its output goes to `log.txt` in the run's folder, or the first run's. It
    sees only the GPUs that it is given.

    Runs on CPUs are forked from a process that has everything imported, which saves each of
    them seconds; CUDA does not survive a fork.
    """

    name: ClassVar[str] = "local"
    limits: ClassVar[frozenset[str]] = frozenset({"time", "memory"})
    stacks: ClassVar[bool] = True

    preload: bool = option(
        True, identity=False, help="fork runs without GPUs from a process with all imports"
    )
    pin: bool = option(True, identity=False, help="keep each run on cores of its own")

    def __post_init__(self) -> None:
        super().__post_init__()
        self._server: ForkServer | None = None
        self._forks = False
        self._devices = 0
        self._slots = self._empty_slots()

    def prepare(self, resources: Resources, runs: Iterable[Run]) -> None:
        runs = list(runs)
        super().prepare(resources, runs)
        self._devices = len(_devices()) if resources.gpus else 0
        # A single run would wait for the same imports in another process.
        self._forks = self.preload and len(runs) > 1 and not resources.gpus and can_adopt()
        self._slots = self._empty_slots()

    def check(self) -> None:
        cpus, gpus = self.resources.cpus, self.resources.gpus
        if cpus > (usable := len(usable_cores())):
            raise ConfigError(
                f"resources.cpus: expected at most {usable}, the cores that this process may use, "
                f"got {cpus}"
            )
        if gpus and not room(self._devices, gpus):
            raise ConfigError(
                f"resources.gpus: expected at most {self._devices}, the GPUs that nvidia-smi "
                f"lists and {VISIBLE} leaves, got {gpus:g}"
            )

    def capacity(self) -> int:
        if self.jobs is not None:
            return self.jobs
        fitting = len(usable_cores()) // self.resources.cpus
        if self.resources.gpus:
            fitting = min(fitting, room(self._devices, self.resources.gpus))
        return max(1, fitting)

    def start(self, job: Job) -> Handle | None:
        if not self._is_ready(job):
            return None
        slot = self._slots.take()
        if slot is None:
            self._warn_if_blocked()
            return None
        try:
            make_private_folder(job.directory)
            process = self._fork(job, slot) or self._spawn(job, slot)
        except OSError:
            self._slots.give_back(slot)
            raise
        return LocalHandle(process, slot, self._slots)

    def close(self) -> None:
        if self._server is not None:
            self._server.close()
            self._server = None

    def _empty_slots(self) -> SlotAllocator:
        folder = cache_folder() / "cores" / platform.node()
        pinned = self.pin and hasattr(os, "sched_setaffinity")
        pool = CorePool(usable_cores() if pinned else (), folder)
        return SlotAllocator(self.resources, pool, _devices)

    def _is_ready(self, job: Job) -> bool:
        """Returns whether a worker can start now; starts the fork server if there is none."""
        if not self._forks:
            return True
        try:
            if self._server is None:
                modules = sorted({*PRELOADED, *self.modules})
                self._server = ForkServer(modules, self._environment(job))
            return self._server.is_ready()
        except OSError:
            # Most likely a module cannot be imported: the workers' own logs will give the reason.
            self._forks = False
            self.close()
            return True

    def _fork(self, job: Job, slot: Slot) -> ForkedProcess | None:
        if self._server is None:
            return None
        environment = self._environment(job, slot)
        try:
            return self._server.fork(job.arguments(), environment, job.log, slot.cores)
        except OSError:
            # The server was killed. This run is spawned, and the next one gets a new server.
            self.close()
            return None

    def _spawn(self, job: Job, slot: Slot) -> subprocess.Popen[bytes]:
        process = job.start(self._environment(job, slot))
        if slot.cores:
            # Before it starts further threads, which would have to be moved one by one.
            with contextlib.suppress(ProcessLookupError):
                os.sched_setaffinity(process.pid, slot.cores)
        return process

    def _environment(self, job: Job, slot: Slot | None = None) -> dict[str, str]:
        devices = ",".join(slot.devices) if slot else ""
        own = worker_environment(self.resources.cpus, job.store_url)
        return os.environ | own | {VISIBLE: devices}

    def _warn_if_blocked(self) -> None:
        if self._slots.are_empty():
            share = f"{min(self.resources.gpus, 1):.0%} of its memory"
            warnings.warn(
                f"no run can start: other processes leave no GPU with {share} free; waiting",
                AdvsweepWarning,
                stacklevel=2,
            )


@dataclass
class LocalHandle(ProcessHandle):
    """A child process in its slot."""

    slot: Slot
    slots: SlotAllocator

    def poll(self) -> int | None:
        code = super().poll()
        if code is not None:
            self.slots.give_back(self.slot)
        return code


def _devices() -> list[Device]:
    return visible_devices(os.environ)
