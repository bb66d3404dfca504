"""Actors of a Ray cluster (https://ray.io): one on this machine, or one that is there already."""

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
from advsweep.sweep.executors.base import Executor, Handle, Job
from advsweep.sweep.executors.remote import RemoteJob
from advsweep.sweep.exit_codes import STOPPED

if TYPE_CHECKING:
    import subprocess

LOCAL = "local"
CONNECT_SECONDS = 10.0

_OBJECT_STORE_BYTES = 80 * 2**20
"""Nearly the least that Ray takes; nothing but exit codes goes through it."""
_CALLS = 4
"""Threads of an actor: one waits for the worker, the others take what is asked meanwhile."""

_CLIENT = "ray://"
"""Begins the address of a cluster whose own process connects in place of this one."""

_log = logging.getLogger(__name__)


@dataclass(kw_only=True)
class RayExecutor(Executor):
    """One Ray actor per run, whose child is the run's worker; Ray finds it a machine.

    Every machine has to reach the store: a SQLite file will do for a cluster of one.

    Runs end with the command that started them, as Ray ends all that a driver has left when
    it is gone. Then, and when an actor or its machine dies, they are lost: free again at once
    on the same machine and after their lease elsewhere, to go on from their last checkpoint.

    A cluster of the command's own listens on the loopback interface alone and requires a random
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
            # Starting the cluster takes seconds, and a plan that is only looked at needs none.
            return max(1, _cores() // self.resources.cpus)
        return self._room()

    def start(self, job: Job) -> Handle:
        remote = self._ray.remote(WorkerActor)
        actor = remote.options(
            num_cpus=self.resources.cpus,
            num_gpus=self.resources.gpus,
            memory=None if self.memory is None else int(self.memory * 1e9),
            max_concurrency=_CALLS,
        ).remote(RemoteJob.of(job, self.resources.cpus))
        return RayHandle(self._ray, actor, job.run_id)

    @cached_property
    def _ray(self) -> Any:
        """The module, connected to a cluster that has room for a run."""
        if self.address == LOCAL:
            _protect_own_cluster()
        ray = _import_ray()
        if not ray.is_initialized():
            self._connect(ray)
        # A cluster that grows on demand has room for what does not fit at the moment.
        if self.jobs is None and not _room(ray.nodes(), self._needs()):
            needs = ", ".join(f"{key} {value:g}" for key, value in self._needs().items())
            raise ConfigError(
                f"executor: expected a Ray cluster that has a machine with {needs}, got none; "
                f"ask for less, or set executor.jobs for a cluster that grows"
            )
        return ray

    def _connect(self, ray: Any) -> None:
        # Nobody agreed to have their use reported.
        os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")
        options: dict[str, Any] = {"log_to_driver": False, "logging_level": logging.ERROR}
        if self.address == LOCAL:
            options |= {"num_cpus": _cores(), "include_dashboard": False}
            options |= {"object_store_memory": _OBJECT_STORE_BYTES}
        if not self.address.startswith(_CLIENT):
            options["job_config"] = _job_config()
        host, _, port = self.address.removeprefix(_CLIENT).rpartition(":")
        try:
            if port.isdecimal():
                # Ray itself tries for minutes where nobody listens.
                socket.create_connection((host.strip("[]"), int(port)), CONNECT_SECONDS).close()
            with _signals_kept():
                ray.init(address=self.address, **options)
        except (OSError, RuntimeError, ValueError) as error:
            raise ConfigError(
                f"executor.address: expected a Ray cluster at '{self.address}' that this Python "
                f"can join: {error}"
            ) from error

    def _room(self) -> int:
        return _room(self._ray.nodes(), self._needs())

    def _needs(self) -> dict[str, float]:
        """What a run takes of a machine, by Ray's names."""
        cores, gpus = self.resources.cpus, self.resources.gpus
        needs = {"CPU": float(cores), "GPU": gpus, "memory": (self.memory or 0) * 1e9}
        return {key: value for key, value in needs.items() if value}


class WorkerActor:
    """The actor of one run: the parent of its worker, wherever Ray has put it."""

    def __init__(self, order: RemoteJob) -> None:
        self._process: subprocess.Popen[bytes] = order.start()

    def wait(self) -> int:
        """The worker's exit code, when it has ended."""
        return self._process.wait()

    def pid(self) -> int:
        return self._process.pid

    def send(self, number: int) -> None:
        """Sends a signal to the worker; nothing happens after its end."""
        self._process.send_signal(number)


class RayHandle(Handle):
    """A worker in the care of an actor, which may still wait for its machine."""

    def __init__(self, ray: Any, actor: Any, run_id: int) -> None:
        self._ray = ray
        self._actor = actor
        self._run_id = run_id
        self._up = actor.pid.remote()
        self._code = actor.wait.remote()
        self._stopped_early = False

    def poll(self) -> int | None:
        if not self._is_there(self._code):
            return None
        if self._stopped_early:
            return STOPPED
        try:
            return int(self._ray.get(self._code))
        except self._ray.exceptions.RayError as error:
            # Whatever has ended the actor gave the worker no time to say anything.
            _log.warning("run %d: %s", self._run_id, str(error).partition("\n")[0])
            return -signal.SIGKILL

    def stop(self) -> None:
        if self._is_there(self._up):
            self._actor.send.remote(signal.SIGTERM)
        else:
            self._stopped_early = True
            self._ray.kill(self._actor)

    def kill(self) -> None:
        if self._is_there(self._up):
            self._actor.send.remote(signal.SIGKILL)
        else:
            self._ray.kill(self._actor)

    def _is_there(self, result: Any) -> bool:
        ready, _ = self._ray.wait([result], timeout=0)
        return bool(ready)


def _room(nodes: list[dict[str, Any]], needs: Mapping[str, float]) -> int:
    """How many runs the machines have room for, each run within one of them."""
    resources = [node["Resources"] for node in nodes if node["Alive"]]
    return sum(
        int(min(machine.get(key, 0) / amount for key, amount in needs.items()))
        for machine in resources
    )


def _cores() -> int:
    if hasattr(os, "sched_getaffinity"):
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1


def _protect_own_cluster() -> None:
    """Has Ray start its own cluster on the loopback interface, with a token of this process.

    Ray reads these variables when it is imported. What the user has set stays.
    """
    # Its name notwithstanding, Ray obeys this on each system; ray.init replaces an address of
    # the loopback interface by one of the network.
    os.environ.setdefault("RAY_ENABLE_WINDOWS_OR_OSX_CLUSTER", "0")
    if "ray" in sys.modules or os.environ.keys() & _AUTHENTICATION:
        return
    os.environ |= {"RAY_AUTH_MODE": "token", "RAY_AUTH_TOKEN": secrets.token_hex(32)}


_AUTHENTICATION = {"RAY_AUTH_MODE", "RAY_AUTH_TOKEN", "RAY_AUTH_TOKEN_PATH"}


class _NoFolders(list[str]):
    """Folders that the actors search for modules: stays empty.

    Ray adds the working folder, in front of all others: a `json.py` in it would run in each
    actor.
    """

    def extend(self, folders: Iterable[str]) -> None:
        """Adds nothing."""


def _job_config() -> Any:
    from ray.job_config import JobConfig

    config = JobConfig()
    config._py_driver_sys_path = _NoFolders()
    return config


def _import_ray() -> Any:
    try:
        import ray
        import ray.exceptions
    except ModuleNotFoundError as error:
        raise ConfigError(
            "executor: expected the package ray for 'ray', which is not installed; "
            "install advsweep[ray]"
        ) from error
    return ray


@contextmanager
def _signals_kept() -> Iterator[None]:
    """Puts the handlers of signals back that Ray replaces by its own."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    before = {n: signal.getsignal(n) for n in (signal.SIGINT, signal.SIGTERM)}
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
