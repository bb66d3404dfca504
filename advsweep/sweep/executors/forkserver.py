"""Workers forked from a process that has everything imported, as children of this process."""

from __future__ import annotations

import ctypes
import functools
import json
import os
import select
import signal
import socket
import subprocess
import sys
import threading
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from advsweep.sweep.executors.forkserver_main import READY

TIMEOUT_SECONDS = 30.0
"""How long a server that hangs is waited for."""

_SET_CHILD_SUBREAPER = 36  # PR_SET_CHILD_SUBREAPER and PR_GET_CHILD_SUBREAPER of prctl(2)
_GET_CHILD_SUBREAPER = 37

_adoption = threading.Lock()


class ForkServer:
    """A process that imports modules and then forks; ready some seconds after it is made.

    Args:
        modules: what it imports.
        environment: its own; what libraries read when they are imported has to be in it, and
            `$ADVSWEEP_STORE`, the store of all its workers.

    Raises:
        OSError: its process cannot be made.
    """

    def __init__(self, modules: Iterable[str], environment: Mapping[str, str]) -> None:
        self._connection, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        self._connection.settimeout(TIMEOUT_SECONDS)
        self._ready = False
        module, descriptor = "advsweep.sweep.executors.forkserver_main", theirs.fileno()
        with theirs:
            self._process = subprocess.Popen(
                [sys.executable, "-P", "-m", module, str(descriptor), *modules],
                stdin=subprocess.DEVNULL,
                stdout=subprocess.DEVNULL,
                stderr=subprocess.DEVNULL,
                env=environment,
                pass_fds=[descriptor],
                start_new_session=True,
            )

    def is_ready(self) -> bool:
        """Whether it has imported everything.

        Raises:
            OSError: it has ended.
        """
        if not self._ready and select.select([self._connection], [], [], 0)[0]:
            self._receive()
            self._ready = True
        return self._ready

    def fork(
        self,
        arguments: Sequence[str],
        environment: Mapping[str, str],
        log: Path,
        cores: Sequence[int],
    ) -> Forked:
        """Starts a worker, in a session of its own.

        Args:
            arguments: its command line.
            log: the file that its output is added to.
            cores: where it runs; anywhere when empty.

        Raises:
            OSError: the server has ended, or does not answer.
        """
        order = {
            "arguments": arguments,
            "environment": dict(environment),
            "log": str(log.absolute()),
            "cores": cores,
            "folder": os.getcwd(),
        }
        with _adopting():
            self._connection.sendall(json.dumps(order).encode())
            return Forked(int(self._receive()))

    def close(self) -> None:
        """Ends it; its workers go on."""
        self._connection.close()
        self._process.kill()
        self._process.wait()

    def _receive(self) -> bytes:
        if received := self._connection.recv(len(READY) + 32):
            return received
        raise OSError("the process that workers are forked from has ended")


@dataclass
class Forked:
    """A worker that was forked: a child, as `subprocess.Popen` has them."""

    pid: int
    code: int | None = None

    def poll(self) -> int | None:
        """None while it lives; then its exit code, negative for the signal that ended it."""
        if self.code is None:
            ended, status = os.waitpid(self.pid, os.WNOHANG)
            self.code = os.waitstatus_to_exitcode(status) if ended else None
        return self.code

    def terminate(self) -> None:
        self._send(signal.SIGTERM)

    def kill(self) -> None:
        self._send(signal.SIGKILL)

    def _send(self, number: signal.Signals) -> None:
        if self.poll() is None:
            os.kill(self.pid, number)


def can_adopt() -> bool:
    """Whether this process can become the parent of what its children leave behind."""
    return sys.platform == "linux" and _prctl(_SET_CHILD_SUBREAPER, _is_subreaper()) == 0


@contextmanager
def _adopting() -> Iterator[None]:
    """A stretch in which descendants that lose their parent become children of this process.

    No longer than that: what else is left behind in a long sweep is the system's to reap.
    """
    with _adoption:
        before = _is_subreaper()
        _prctl(_SET_CHILD_SUBREAPER, 1)
        try:
            yield
        finally:
            _prctl(_SET_CHILD_SUBREAPER, before)


def _is_subreaper() -> int:
    value = ctypes.c_int()
    _prctl(_GET_CHILD_SUBREAPER, ctypes.addressof(value))
    return value.value


def _prctl(operation: int, argument: int) -> int:
    result: int = _libc().prctl(operation, ctypes.c_ulong(argument), 0, 0, 0)
    return result


@functools.cache
def _libc() -> ctypes.CDLL:
    return ctypes.CDLL(None)
