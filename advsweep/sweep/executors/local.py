"""Processes of this machine, each on cores and GPUs of its own."""

from __future__ import annotations

import contextlib
import json
import os
import platform
import subprocess
import sys
import warnings
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, ClassVar

from advsweep.components import option
from advsweep.errors import AdvsweepWarning, ConfigError
from advsweep.local_files import cache_folder, make_private_folder, open_private
from advsweep.redaction import redacted_arguments
from advsweep.sweep.executors.allocation import (
    VISIBLE,
    CorePool,
    Device,
    Slot,
    SlotAllocator,
    room,
    visible_devices,
)
from advsweep.sweep.executors.base import Executor, Handle, Job, kill_session
from advsweep.sweep.executors.forkserver import Forked, ForkServer, can_adopt
from advsweep.sweep.worker.environment import COMMAND_VARIABLE

if TYPE_CHECKING:
    from advsweep.backends.base import Run
    from advsweep.sweep.executors.base import Resources

PRELOADED = (
    "advsweep.backends.build",
    "advsweep.evaluation.run_evaluator",
    "advsweep.sweep.worker.reporter",
    "advsweep.sweep.early_stopping.check",
    "advsweep.sweep.worker.stacked",
    "advsweep.sweep.worker.main",
)
"""What every worker imports, whatever its run is made of."""

_THREADS = (
    "OMP_NUM_THREADS",
    "MKL_NUM_THREADS",
    "OPENBLAS_NUM_THREADS",
    "NUMEXPR_NUM_THREADS",
    "VECLIB_MAXIMUM_THREADS",
)

_QUIET = {
    "OMP_WAIT_POLICY": "PASSIVE",
    "TOKENIZERS_PARALLELISM": "false",
    "PYTHONUNBUFFERED": "1",
}
"""Threads that spin cost several times over where runs are side by side."""


@dataclass(kw_only=True)
class LocalExecutor(Executor):
    """One process per worker, in a session of its own, on as many cores as a run has threads.

    A worker has one run, or several that are trained together. The session keeps Ctrl-C to the
    parent, which asks its workers to stop. A worker's output goes to `log.txt` in the run's
    folder, the first one's of several. It sees the GPUs it was given and no other.
    Runs on CPUs alone are forked from a process that has everything imported, which saves
    each of them seconds; CUDA does not survive a fork.
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
        # A run alone would wait for the same imports in another process.
        self._forks = self.preload and len(runs) > 1 and not resources.gpus and can_adopt()
        self._slots = self._empty_slots()

    def check(self) -> None:
        cpus, gpus = self.resources.cpus, self.resources.gpus
        if cpus > len(_cores()):
            raise ConfigError(
                f"resources.cpus: expected at most {len(_cores())}, the cores that this process "
                f"may use, got {cpus}"
            )
        if gpus and not room(self._devices, gpus):
            raise ConfigError(
                f"resources.gpus: expected at most {self._devices}, the GPUs that nvidia-smi "
                f"lists and {VISIBLE} leaves, got {gpus:g}"
            )

    def capacity(self) -> int:
        if self.jobs is not None:
            return self.jobs
        fitting = len(_cores()) // self.resources.cpus
        if self.resources.gpus:
            fitting = min(fitting, room(self._devices, self.resources.gpus))
        return max(1, fitting)

    def start(self, job: Job) -> Handle | None:
        if not self._is_ready(job):
            return None
        slot = self._slots.take()
        if slot is None:
            self._tell_who_waits()
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
        return SlotAllocator(self.resources, CorePool(_cores() if pinned else (), folder), _devices)

    def _is_ready(self, job: Job) -> bool:
        """Whether a worker can be started at once; what has to be there for that is made."""
        if not self._forks:
            return True
        try:
            if self._server is None:
                modules = sorted({*PRELOADED, *self.modules})
                self._server = ForkServer(modules, self._environment() | _told(job))
            return self._server.is_ready()
        except OSError:
            # A module cannot be imported, most likely: the logs of the workers will say why.
            self._forks = False
            self.close()
            return True

    def _fork(self, job: Job, slot: Slot) -> Forked | None:
        if self._server is None:
            return None
        environment = self._environment(slot.devices) | _told(job)
        try:
            return self._server.fork(_arguments(job), environment, _log(job), slot.cores)
        except OSError:
            # Somebody ended it. This run gets a process by itself, and the next a new server.
            self.close()
            return None

    def _spawn(self, job: Job, slot: Slot) -> subprocess.Popen[bytes]:
        with open_private(_log(job), "ab") as log:
            process = subprocess.Popen(
                [sys.executable, "-P", "-m", "advsweep.sweep.worker.main", *_arguments(job)],
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=subprocess.STDOUT,
                env=self._environment(slot.devices) | _told(job),
                start_new_session=True,
            )
        if slot.cores:
            # Long before it has a second thread, which would have to be moved as well.
            with contextlib.suppress(ProcessLookupError):
                os.sched_setaffinity(process.pid, slot.cores)
        return process

    def _environment(self, devices: Sequence[str] = ()) -> dict[str, str]:
        """What every worker has, before what it is told of its job."""
        threads = dict.fromkeys(_THREADS, str(self.resources.cpus))
        return os.environ | threads | _QUIET | {VISIBLE: ",".join(devices)}

    def _tell_who_waits(self) -> None:
        if self._slots.are_empty():
            share = f"{min(self.resources.gpus, 1):.0%} of its memory"
            warnings.warn(
                f"no run can start: other processes leave no GPU with {share} free; waiting",
                AdvsweepWarning,
                stacklevel=2,
            )


@dataclass
class LocalHandle(Handle):
    """A child process in its slot."""

    process: subprocess.Popen[bytes] | Forked
    slot: Slot
    slots: SlotAllocator

    def poll(self) -> int | None:
        code = self.process.poll()
        if code is not None:
            self.slots.give_back(self.slot)
        return code

    def pid(self) -> int | None:
        return self.process.pid

    def stop(self) -> None:
        self.process.terminate()

    def kill(self) -> None:
        if self.process.poll() is None:
            kill_session(self.process.pid)


def _cores() -> list[int]:
    if hasattr(os, "sched_getaffinity"):
        return sorted(os.sched_getaffinity(0))
    return list(range(os.cpu_count() or 1))


def _devices() -> list[Device]:
    return visible_devices(os.environ)


def _log(job: Job) -> Path:
    return job.directory / "log.txt"


def _arguments(job: Job) -> list[str]:
    arguments = []
    for run_id in (job.run_id, *job.others):
        arguments += ["--run", str(run_id)]
    arguments += ["--parent-pid", str(os.getpid())]
    for settings in job.evaluations:
        arguments += ["--evaluation", json.dumps(settings)]
    return arguments


def _told(job: Job) -> dict[str, str]:
    # The store's URL may hold a password, and command lines are there for all to read.
    return {"ADVSWEEP_STORE": job.store_url, COMMAND_VARIABLE: redacted_arguments(sys.argv)}
