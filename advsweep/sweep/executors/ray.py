"""Ray (https://ray.io): workers as children of actors, on an own cluster or an existing one."""

from __future__ import annotations

import os
import signal
import subprocess
import time
import warnings
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

from advsweep.components import option
from advsweep.errors import AdvsweepWarning, ConfigError, counted
from advsweep.machine import memory_bytes, usable_cores
from advsweep.sweep.events import OUT_OF_MEMORY, STOPPED
from advsweep.sweep.executors.base import Executor, Handle, Job
from advsweep.sweep.executors.devices import VISIBLE, visible_devices
from advsweep.sweep.executors.memory import MEASURE_SECONDS, end_beyond
from advsweep.sweep.executors.processes import ProcessHandle, remote_environment, start_worker
from advsweep.sweep.executors.ray_cluster import Cluster, joined_nodes
from advsweep.sweep.executors.sizes import show_size

# Threads of an actor: one waits for the worker, the others serve calls meanwhile.
_CALLS = 4
# How long a run waits for a machine before a line says so.
_WAIT_SECONDS = 15.0

# What a machine has or a worker needs, by the names of Ray; memory in bytes.
Amounts = Mapping[str, float]


@dataclass(kw_only=True)
class RayExecutor(Executor):
    """Starts each worker as the child of a Ray actor, on the machine where Ray finds room for it.

    Every machine must have the same folders and reach the store: a SQLite file suffices for one
    machine, several need a database server.

    Runs end with the command that started them, as Ray ends the actors of a driver that is gone.
    Then, and when an actor or its machine dies, they go on from their last checkpoint: at once on
    the same machine, elsewhere when their lease is over.

    The command's own cluster listens on the loopback interface, requires a random token, and ends
    with the command. Ray knows nothing of the GPUs that other executors of its machines use.
    """

    name: ClassVar[str] = "ray"
    limits_time: ClassVar[bool] = True
    limits_memory: ClassVar[bool] = True
    stacks: ClassVar[bool] = True

    address: str | None = option(
        None,
        identity=False,
        help="HOST:PORT of a cluster, or 'auto' for the one of this machine; null: $RAY_ADDRESS, "
        "else a cluster of its own",
    )
    grows: bool = option(
        False,
        identity=False,
        help="the cluster adds machines for what waits: start runs that no machine has room for",
    )

    def __post_init__(self) -> None:
        super().__post_init__()
        self._cluster = Cluster(self.address or os.environ.get("RAY_ADDRESS"))
        self._has_warned = False

    def check(self) -> None:
        machines = self._machines()
        needs = self._needs()
        if not self.grows and not _room(machines, needs):
            self._cluster.leave()
            raise ConfigError(
                f"resources: expected a machine with {_describe(needs)}, got a Ray cluster with "
                f"{_describe_machines(machines, needs)}; ask for less, or set "
                "executor.grows=true for a cluster that adds machines"
            )

    def capacity(self) -> int:
        if self.jobs is not None:
            return self.jobs
        if self.grows:
            raise ConfigError(
                "executor.grows: expected executor.jobs as well, the number of runs side by side, "
                "since the cluster's present machines do not say it"
            )
        return max(1, _room(self._machines(), self._needs()))

    def start(self, job: Job) -> Handle:
        ray = self._cluster.join(self._machine())
        remote = ray.remote(WorkerActor)
        environment = remote_environment(self.resources.cpus, job.store_url)
        environment |= self.resources.variables()
        if not self.resources.gpus:
            # A run without GPUs must not take memory on the GPUs of another.
            environment[VISIBLE] = ""
        needs = self._needs()
        actor = remote.options(
            num_cpus=needs["CPU"],
            num_gpus=needs.get("GPU", 0),
            memory=needs.get("memory"),
            max_concurrency=_CALLS,
        ).remote(job, environment, self.resources.memory_bytes)
        return RayHandle(ray, actor, self)

    def warn_of_waiting(self) -> None:
        """Say once that a run waits for a machine."""
        if self._has_warned:
            return
        self._has_warned = True
        warnings.warn(
            f"a run waits for a machine with {_describe(self._needs())}: the cluster's other jobs "
            "have them all, or it has yet to start one",
            AdvsweepWarning,
            stacklevel=2,
        )

    def close(self) -> None:
        self._cluster.leave()

    def _needs(self) -> Amounts:
        """Return what a worker occupies of a machine, by Ray's names."""
        memory = self.resources.memory_bytes or 0
        needs = {"CPU": self.resources.cpus, "GPU": self.resources.gpus, "memory": memory}
        return {key: value for key, value in needs.items() if value}

    def _machines(self) -> Sequence[Amounts]:
        """Return what the machines of the cluster have in all, by Ray's names."""
        if self._cluster.is_own:
            # Starting it takes seconds, and a plan needs none.
            return joined_nodes() or [self._machine()]
        self._cluster.join(self._machine())
        return joined_nodes()

    def _machine(self) -> Amounts:
        """Return what this machine gives a cluster of its own."""
        gpus = len(visible_devices()) if self.resources.gpus else 0
        return {"CPU": len(usable_cores()), "GPU": gpus, "memory": memory_bytes()}


class WorkerActor:
    """The parent of a worker, on the machine that Ray chose."""

    def __init__(self, job: Job, environment: Mapping[str, str], memory_limit: int | None) -> None:
        # A cluster that a command starts blocks the signal, for all processes below it.
        signal.pthread_sigmask(signal.SIG_UNBLOCK, {signal.SIGINT})
        self._worker = ProcessHandle(start_worker(job, {**os.environ, **environment}))
        self._memory_limit = memory_limit

    def is_started(self) -> bool:
        """Return True, as the constructor has returned."""
        return True

    def wait(self) -> tuple[int, str]:
        """Wait for the worker; return its exit code, and why it was killed here, if it was."""
        process = self._worker.process
        if self._memory_limit is None:
            return process.wait(), ""
        reason = ""
        while not reason:
            try:
                return process.wait(MEASURE_SECONDS), ""
            except subprocess.TimeoutExpired:
                reason = end_beyond(process.pid, self._memory_limit)
        process.wait()
        return OUT_OF_MEMORY, reason

    def stop(self) -> None:
        """Stop the worker; does nothing after its end."""
        self._worker.stop()

    def kill(self) -> None:
        """Kill the worker; does nothing after its end."""
        self._worker.kill()


class RayHandle(Handle):
    """A worker of an actor, which may still be waiting for a machine."""

    def __init__(self, ray: Any, actor: Any, executor: RayExecutor) -> None:
        self._ray = ray
        self._actor = actor
        self._executor = executor
        self._begun = actor.is_started.remote()
        self._code = actor.wait.remote()
        self._requested = time.monotonic()
        self._has_begun = False
        self._is_withdrawn = False
        self._fault = ""
        self._excess = ""

    def poll(self) -> int | None:
        if self._is_withdrawn:
            return STOPPED
        if not self._is_ready(self._code):
            if self.is_waiting() and time.monotonic() - self._requested > _WAIT_SECONDS:
                self._executor.warn_of_waiting()
            return None
        try:
            code, self._excess = self._ray.get(self._code)
        except self._ray.exceptions.RayError as error:
            return self._explain_loss(error)
        # What it occupies is free at once.
        self._ray.kill(self._actor)
        return int(code)

    def is_waiting(self) -> bool:
        if not self._has_begun:
            self._has_begun = self._is_ready(self._begun)
        return not self._has_begun

    def machine_fault(self) -> str:
        return self._fault

    def memory_excess(self) -> str:
        return self._excess

    def stop(self) -> None:
        # A call to an actor that waits for a machine would wait as well.
        if self.is_waiting():
            self._withdraw()
        else:
            self._actor.stop.remote()

    def kill(self) -> None:
        if self.is_waiting():
            self._withdraw()
        else:
            self._actor.kill.remote()

    def _withdraw(self) -> None:
        self._is_withdrawn = True
        self._ray.kill(self._actor)

    def _explain_loss(self, error: Exception) -> int:
        """Note why the actor died, which had no time to report an exit code.

        Raises:
            ConfigError: it could not start its worker, as no other on its machine could.
        """
        reason = " ".join(str(error).split())
        if "creation task" in reason:
            last = str(error).strip().splitlines()[-1].strip()
            raise ConfigError(
                f"executor=ray: expected every machine of the cluster to have this Python "
                f"environment and the folders of the runs, got: {last}"
            ) from error
        self._fault = f"its Ray actor, or the machine, is gone: {reason}"
        return -signal.SIGKILL

    def _is_ready(self, result: Any) -> bool:
        ready, _ = self._ray.wait([result], timeout=0)
        return bool(ready)


def _room(machines: Sequence[Amounts], needs: Amounts) -> int:
    """Return how many runs fit on the machines, each run on a single one."""
    return sum(
        int(min(machine.get(key, 0) / amount for key, amount in needs.items()))
        for machine in machines
    )


def _describe(amounts: Amounts) -> str:
    """Return amounts with the names of Ray: `CPU 2, memory 1.5G`."""
    texts = []
    for key, amount in amounts.items():
        if key == "memory":
            texts.append(f"memory {show_size(int(amount))}")
        else:
            texts.append(f"{key} {amount:g}")
    return ", ".join(texts)


def _describe_machines(machines: Sequence[Amounts], needs: Amounts) -> str:
    """Return what each kind of machine has of what a run needs."""
    if not machines:
        return "no machine"
    kinds = Counter(_describe({key: each.get(key, 0) for key in needs}) for each in machines)
    return "; ".join(f"{counted(n, 'machine')} of {kind}" for kind, n in kinds.items())
