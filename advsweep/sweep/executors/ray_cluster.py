"""A Ray cluster: how a command joins one, or starts one of its own and ends it."""

from __future__ import annotations

import logging
import os
import secrets
import shutil
import signal
import socket
import sys
import tempfile
import threading
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

from filelock import FileLock, Timeout

from advsweep.errors import ConfigError
from advsweep.packages import import_extra

CONNECT_SECONDS = 5.0
# What an address means that names no cluster.
LOCAL = "local"

# Close to the minimum that Ray accepts; only exit codes pass through it.
_OBJECT_STORE_BYTES = 80 * 2**20
_AUTHENTICATION = frozenset({"RAY_AUTH_MODE", "RAY_AUTH_TOKEN", "RAY_AUTH_TOKEN_PATH"})
# The beginning of a connection by HTTP/2 (RFC 9113, 3.4 and 4.1): the preface, and a frame with
# the client's settings, of which there are none.
_SETTINGS = 4
_GRPC_GREETING = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n" + bytes([0, 0, 0, _SETTINGS, 0, 0, 0, 0, 0])
_FRAME_BYTES = 9
_FRAME_TYPE = 3
_FOLDER = "advsweep-ray-"
_LOCK = "lock"
# The longest path of a folder in which the names of Ray's sockets fit.
_LONGEST_FOLDER = 40


class Cluster:
    """The cluster of an executor.

    Args:
        address: where it is; None: it is started by `join`, for this process.

    Attributes:
        is_own: whether it is started by `join`.
    """

    def __init__(self, address: str | None) -> None:
        self.is_own = address in (None, LOCAL)
        self._address = address or LOCAL
        self._has_joined = False
        self._folder: ClusterFolder | None = None

    def join(self, machine: Mapping[str, float]) -> Any:
        """Return the module of Ray, connected to the cluster.

        A program that has joined a cluster before stays in that one.

        Args:
            machine: what this machine gives a cluster of its own, by Ray's names.

        Raises:
            ConfigError: Ray is not installed, or there is no cluster at the address.
        """
        if self.is_own:
            _isolate()
        ray = import_extra("ray", "ray", "executor=ray")
        if not ray.is_initialized():
            self._connect(ray, machine)
            self._has_joined = True
        return ray

    def leave(self) -> None:
        """Leave the cluster that `join` has joined; end it and remove its files if it is own."""
        if self._has_joined:
            self._has_joined = False
            sys.modules["ray"].shutdown()
        # Also one that failed to start has its folder.
        if self._folder is not None:
            self._folder.remove()
            self._folder = None

    def _connect(self, ray: Any, machine: Mapping[str, float]) -> None:
        from ray.job_config import JobConfig

        # Without it Ray reports usage to its makers, to which the user has not agreed.
        os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")
        job_config = JobConfig()
        job_config._py_driver_sys_path = _NoFolders()
        options = {
            "log_to_driver": False,
            "logging_level": logging.CRITICAL,
            "job_config": job_config,
        }
        if self.is_own:
            self._folder = ClusterFolder()
            options |= {
                "num_cpus": machine["CPU"],
                "num_gpus": machine["GPU"],
                "_memory": machine["memory"],
                "object_store_memory": _OBJECT_STORE_BYTES,
                "include_dashboard": False,
                "_temp_dir": str(self._folder.path),
            }
        else:
            _check_address(self._address)
        try:
            with _signals_kept():
                ray.init(address=self._address, **options)
        except (OSError, RuntimeError, ValueError) as error:
            raise _refused(self._address, error, hint=self._hint_for_token()) from error

    def _hint_for_token(self) -> str:
        """Return what a user has to know who may lack the token of a cluster."""
        if self.is_own or os.environ.keys() & _AUTHENTICATION:
            return ""
        # For an address Ray does not look whether there is a token, and only says "failed".
        return "; one that requires a token needs RAY_AUTH_MODE=token in the environment"


def joined_nodes() -> Sequence[Mapping[str, float]]:
    """Return what the machines of the joined cluster have, by Ray's names; empty without one."""
    ray = sys.modules.get("ray")
    if ray is None or not ray.is_initialized():
        return []
    return [node["Resources"] for node in ray.nodes() if node["Alive"]]


def _isolate() -> None:
    """Let a cluster of this process listen on the loopback interface and want a random token.

    Ray reads these variables when it is imported; values that the user has set stay.
    """
    # Read on every system, despite its name: with it, ray.init replaces a loopback address by one
    # of the network.
    os.environ.setdefault("RAY_ENABLE_WINDOWS_OR_OSX_CLUSTER", "0")
    # Otherwise Ray ends actors when the machine's memory is nearly full, whoever uses it.
    os.environ.setdefault("RAY_memory_monitor_refresh_ms", "0")
    if "ray" not in sys.modules and not os.environ.keys() & _AUTHENTICATION:
        os.environ["RAY_AUTH_MODE"] = "token"
        os.environ["RAY_AUTH_TOKEN"] = secrets.token_hex(32)


class ClusterFolder:
    """A folder for the logs and sockets of a cluster of this process, whose paths must be short.

    Folders that killed processes have left behind are removed: each holds a lock on its own.
    """

    def __init__(self) -> None:
        chosen = os.environ.get("RAY_TMPDIR") or tempfile.gettempdir()
        parent = Path(chosen if len(chosen) <= _LONGEST_FOLDER else "/tmp")
        for left in parent.glob(f"{_FOLDER}*"):
            _remove_if_left(left)
        self.path = Path(tempfile.mkdtemp(prefix=_FOLDER, dir=parent))
        self._lock = FileLock(self.path / _LOCK)
        self._lock.acquire()

    def remove(self) -> None:
        """Remove it."""
        self._lock.release()
        shutil.rmtree(self.path, ignore_errors=True)


def _remove_if_left(folder: Path) -> None:
    """Remove the folder of a cluster whose process is gone."""
    # Of another user, or before its process has made the lock: it stays.
    with suppress(Timeout, OSError):
        if (folder / _LOCK).stat().st_uid != os.getuid():
            return
        with FileLock(folder / _LOCK, blocking=False):
            shutil.rmtree(folder, ignore_errors=True)


def _check_address(address: str) -> None:
    """Refuse an address that is none, or at which nobody listens.

    Raises:
        ConfigError: it is refused. Ray itself would try again for minutes.
    """
    if address == "auto":
        return
    host, _, port = address.rpartition(":")
    if "://" in address or not host or not port.isdecimal():
        raise ConfigError(
            f"executor.address: expected HOST:PORT of a Ray cluster (6379 is its usual port), "
            f"'auto' or 'local', got {address!r}; start the command on a machine that reaches it"
        )
    try:
        with socket.create_connection((host.strip("[]"), int(port)), CONNECT_SECONDS) as server:
            speaks = "RAY_USE_TLS" in os.environ or _speaks_grpc(server)
    except (OSError, OverflowError) as error:
        raise _refused(address, error) from error
    if not speaks:
        raise _refused(address, ConnectionError("a server of another kind listens there"))


def _speaks_grpc(server: socket.socket) -> bool:
    """Return whether a server speaks gRPC, as Ray does: it begins by a frame with its settings."""
    server.sendall(_GRPC_GREETING)
    answer = server.recv(_FRAME_BYTES)
    return len(answer) == _FRAME_BYTES and answer[_FRAME_TYPE] == _SETTINGS


def _refused(address: str, error: Exception, hint: str = "") -> ConfigError:
    reason = " ".join(str(error).split())
    return ConfigError(
        f"executor.address: expected a Ray cluster at '{address}' that this Python can join, "
        f"got: {reason}{hint}"
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
    before = {number: signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM)}
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
