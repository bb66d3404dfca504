"""Ray (https://ray.io): runs as actors of a local cluster or of an existing one."""

from __future__ import annotations

import logging
import os
import secrets
import signal
import socket
import sys
import threading
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING, Any, ClassVar

from advsweep.components import option
from advsweep.errors import ConfigError
from advsweep.machine import usable_cores
from advsweep.packages import import_extra
from advsweep.sweep.events import STOPPED
from advsweep.sweep.executors.base import Executor, Handle, Job, remote_environment, start_worker

if TYPE_CHECKING:
    import subprocess

LOCAL = "local"
CONNECT_SECONDS = 10.0

# Close to the minimum that Ray accepts; only exit codes pass through it.
_OBJECT_STORE_BYTES = 80 * 2**20
# Threads of an actor: one waits for the worker, the others serve calls meanwhile.
_CALLS = 4

_AUTHENTICATION = {"RAY_AUTH_MODE", "RAY_AUTH_TOKEN", "RAY_AUTH_TOKEN_PATH"}
# Prefix of the addresses of Ray Client servers, which connect to the cluster themselves.
_CLIENT = "ray://"

_log = logging.getLogger(__name__)


@dataclass(kw_only=True)
class RayExecutor(Executor):
    """Starts one Ray actor per run, with the worker as its child; Ray places it on a machine.

    Every machine must reach the store: a SQLite file suffices for a cluster of one machine.

    Runs end with the command that started them, as Ray ends the actors of a driver that is
    gone. Then, and when an actor or its machine dies, they are lost: free at once on the same
    machine, elsewhere after their lease, to resume from their last checkpoint.

    The command's own cluster listens on the loopback interface alone and requires a random
    token (Ray 2.52 and newer), which its processes get through their environment.
    """

    name: ClassVar[str] = "ray"

    address: str = option(
        LOCAL,
        identity=False,
        help="of a cluster, or 'auto' for the one of this machine; 'local': one of its own, "
        "which ends with the command",
    )
    memory: float | None = option(
        None, gt=0, identity=False, help="GB that Ray sets aside for each run; null: none"
    )

    def capacity(self) -> int:
        if self.jobs is not None:
            return self.jobs
        if self.address == LOCAL:
            # Starting the cluster takes seconds, and `plan` needs none.
            return max(1, len(usable_cores()) // self.resources.cpus)
        return _room(self._ray.nodes(), self._needs())

    def start(self, job: Job) -> Handle:
        remote = self._ray.remote(WorkerActor)
        actor = remote.options(
            num_cpus=self.resources.cpus,
            num_gpus=self.resources.gpus,
            memory=None if self.memory is None else int(self.memory * 1e9),
            max_concurrency=_CALLS,
        ).remote(job, remote_environment(self.resources.cpus, job.store_url))
        return RayHandle(self._ray, actor, job.run_id)

    @cached_property
    def _ray(self) -> Any:
        """The ray module, connected to a cluster that has room for a run."""
        if self.address == LOCAL:
            # Its own cluster is on the loopback interface and wants a random token. Ray reads
            # these variables when it is imported; values that the user has set stay. The first is
            # read on every system, despite its name: without it, ray.init replaces a loopback
            # address by one of the network.
            os.environ.setdefault("RAY_ENABLE_WINDOWS_OR_OSX_CLUSTER", "0")
            if "ray" not in sys.modules and not os.environ.keys() & _AUTHENTICATION:
                os.environ |= {"RAY_AUTH_MODE": "token", "RAY_AUTH_TOKEN": secrets.token_hex(32)}
        ray = import_extra("ray", "ray", "executor=ray")
        if not ray.is_initialized():
            self._connect(ray)
        # With `jobs` set, the cluster may grow until it has room.
        if self.jobs is None and not _room(ray.nodes(), self._needs()):
            needs = ", ".join(f"{key} {value:g}" for key, value in self._needs().items())
            raise ConfigError(
                f"executor: expected a Ray cluster that has a machine with {needs}, got none; "
                f"ask for less, or set executor.jobs for a cluster that grows"
            )
        return ray

    def _connect(self, ray: Any) -> None:
        # The user has not agreed to usage reports.
        os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")
        options: dict[str, Any] = {"log_to_driver": False, "logging_level": logging.ERROR}
        if self.address == LOCAL:
            options |= {"num_cpus": len(usable_cores()), "include_dashboard": False}
            options |= {"object_store_memory": _OBJECT_STORE_BYTES}
        if not self.address.startswith(_CLIENT):
            from ray.job_config import JobConfig

            options["job_config"] = JobConfig()
            options["job_config"]._py_driver_sys_path = _NoFolders()
        host, _, port = self.address.removeprefix(_CLIENT).rpartition(":")
        try:
            if port.isdecimal():
                # Ray itself retries for minutes when no server listens.
                socket.create_connection((host.strip("[]"), int(port)), CONNECT_SECONDS).close()
            with _signals_kept():
                ray.init(address=self.address, **options)
        except (OSError, RuntimeError, ValueError) as error:
            raise ConfigError(
                f"executor.address: expected a Ray cluster at '{self.address}' that this Python "
                f"can join: {error}"
            ) from error

    def _needs(self) -> dict[str, float]:
        """Return what a run occupies of a machine, by Ray's names."""
        cores, gpus = self.resources.cpus, self.resources.gpus
        needs = {"CPU": float(cores), "GPU": gpus, "memory": (self.memory or 0) * 1e9}
        return {key: value for key, value in needs.items() if value}


class WorkerActor:
    """The actor of one run: the parent of its worker, on the machine that Ray chose."""

    def __init__(self, job: Job, environment: Mapping[str, str]) -> None:
        self._process: subprocess.Popen[bytes] = start_worker(job, {**os.environ, **environment})

    def wait(self) -> int:
        """Wait for the worker and return its exit code."""
        return self._process.wait()

    def pid(self) -> int:
        return self._process.pid

    def send(self, number: int) -> None:
        """Send a signal to the worker; does nothing after its end."""
        self._process.send_signal(number)


class RayHandle(Handle):
    """A worker of an actor, which may still be waiting for a machine."""

    def __init__(self, ray: Any, actor: Any, run_id: int) -> None:
        self._ray = ray
        self._actor = actor
        self._run_id = run_id
        self._started = actor.pid.remote()
        self._code = actor.wait.remote()
        self._stopped_early = False

    def poll(self) -> int | None:
        if not self._is_ready(self._code):
            return None
        if self._stopped_early:
            return STOPPED
        try:
            return int(self._ray.get(self._code))
        except self._ray.exceptions.RayError as error:
            # The actor died, and its worker with it, before it could report an exit code.
            _log.warning("run %d: %s", self._run_id, str(error).partition("\n")[0])
            return -signal.SIGKILL

    def stop(self) -> None:
        # A call to an actor that waits for a machine would wait as well.
        if self._is_ready(self._started):
            self._actor.send.remote(signal.SIGTERM)
        else:
            self._stopped_early = True
            self._ray.kill(self._actor)

    def kill(self) -> None:
        if self._is_ready(self._started):
            self._actor.send.remote(signal.SIGKILL)
        else:
            self._ray.kill(self._actor)

    def _is_ready(self, result: Any) -> bool:
        ready, _ = self._ray.wait([result], timeout=0)
        return bool(ready)


def _room(nodes: list[dict[str, Any]], needs: Mapping[str, float]) -> int:
    """Return how many runs fit on the machines, each run on a single one."""
    resources = [node["Resources"] for node in nodes if node["Alive"]]
    return sum(
        int(min(machine.get(key, 0) / amount for key, amount in needs.items()))
        for machine in resources
    )


class _NoFolders(list[str]):
    """An import path for actors that stays empty.

    Ray puts the working folder in front of it: a `json.py` there would run in each actor.
    """

    def extend(self, folders: Iterable[str]) -> None:
        """Ignore the folders."""


@contextmanager
def _signals_kept() -> Iterator[None]:
    """Restore the signal handlers that Ray replaces by its own."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    before = {n: signal.getsignal(n) for n in (signal.SIGINT, signal.SIGTERM)}
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
