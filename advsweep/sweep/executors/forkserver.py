"""Forks workers from a process that has everything imported.

`ForkServer` is the scheduler's side. The server process (`main`) runs this module with
`python -m`: it imports once what every worker needs, and forks on request. It leaves each worker
without a parent at once, whereupon the scheduler's process adopts the worker: that process sees
it end, and the end of the server does not affect any worker. (The forkserver of
`multiprocessing` stays the parent of its children, so their exit codes die with it.)
"""

from __future__ import annotations

import ctypes
import functools
import gc
import importlib
import json
import logging
import os
import select
import socket
import subprocess
import sys
import threading
import time
import traceback
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any, NoReturn

from advsweep.local_files import FILE_MODE
from advsweep.sweep.executors.base import ForkedProcess

if TYPE_CHECKING:
    from advsweep.store import Store

TIMEOUT_SECONDS = 30.0
"""Time limit for an answer of the server."""
READY = b"ready"
REQUEST_BYTES = 1 << 22

_MODULE = "advsweep.sweep.executors.forkserver"
_SET_CHILD_SUBREAPER = 36  # PR_SET_CHILD_SUBREAPER and PR_GET_CHILD_SUBREAPER of prctl(2)
_GET_CHILD_SUBREAPER = 37

_adoption = threading.Lock()


class ForkServer:
    """A process that imports modules and then forks; ready seconds after it is made.

    Args:
        modules: the modules to import.
        environment: its own; it holds `$ADVSWEEP_STORE`, the store of all its workers, and the
            variables that libraries read when they are imported.

    Raises:
        OSError: its process cannot be made.
    """

    def __init__(self, modules: Iterable[str], environment: Mapping[str, str]) -> None:
        self._connection, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        self._connection.settimeout(TIMEOUT_SECONDS)
        self._ready = False
        with theirs:
            self._process = subprocess.Popen(
                [sys.executable, "-P", "-m", _MODULE, str(theirs.fileno()), *modules],
                stdin=subprocess.DEVNULL,
                stdout=subprocess.DEVNULL,
                stderr=subprocess.DEVNULL,
                env=environment,
                pass_fds=[theirs.fileno()],
                start_new_session=True,
            )

    def is_ready(self) -> bool:
        """Returns whether it has imported everything.

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
    ) -> ForkedProcess:
        """Starts a worker, in a session of its own.

        Args:
            arguments: its command line.
            log: the file that its output is appended to.
            cores: the cores that it may use; all when empty.

        Raises:
            OSError: the server has ended, or does not answer.
        """
        request = {
            "arguments": arguments,
            "environment": dict(environment),
            "log": str(log.absolute()),
            "cores": cores,
            "folder": os.getcwd(),
        }
        with _adopting():
            self._connection.sendall(json.dumps(request).encode())
            return ForkedProcess(int(self._receive()))

    def close(self) -> None:
        """Ends it; its workers continue."""
        self._connection.close()
        self._process.kill()
        self._process.wait()

    def _receive(self) -> bytes:
        if received := self._connection.recv(len(READY) + 32):
            return received
        raise OSError("the process that workers are forked from has ended")


def can_adopt() -> bool:
    """Returns whether this process can become the parent of orphaned descendants."""
    return sys.platform == "linux" and _prctl(_SET_CHILD_SUBREAPER, _is_subreaper()) == 0


@contextmanager
def _adopting() -> Iterator[None]:
    """Adopts descendants that lose their parent meanwhile.

    Only for this moment: whatever else a long sweep orphans is left to init.
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


def main() -> None:
    """Serves the socket whose descriptor is the first argument until its other end closes.

    The other arguments are modules to import. It then sends `READY`, and answers each request
    with the pid of a worker.
    """
    from advsweep.sweep.worker.environment import describe_environment

    descriptor, *modules = sys.argv[1:]
    with socket.socket(fileno=int(descriptor)) as connection:
        for module in modules:
            importlib.import_module(module)
        describe_environment()  # cached, and inherited by the workers
        store = _open_store()
        # Pages that the collector does not touch stay shared with the workers.
        gc.collect()
        gc.freeze()
        connection.sendall(READY)
        while request := connection.recv(REQUEST_BYTES):
            connection.sendall(str(_fork(json.loads(request), store, connection)).encode())


def _open_store() -> Store | None:
    """Opens the workers' store, without keeping connections.

    Returns None if it cannot be opened now: each worker then waits for it and logs why.
    """
    from advsweep.errors import StoreError
    from advsweep.store import open_store
    from advsweep.sweep.retry_policy import store_patience

    try:
        store = open_store(create=False, patience=store_patience())
    except StoreError:
        return None
    store.close()
    return store


def _fork(request: dict[str, Any], store: Store | None, connection: socket.socket) -> int:
    """Forks a worker and returns its pid."""
    reading, writing = os.pipe()
    # The process in between ends at once, which orphans the worker.
    if os.fork() == 0:
        between = os.getpid()
        worker = os.fork()
        if worker == 0:
            for descriptor in (reading, writing, connection.detach()):
                os.close(descriptor)
            while os.getppid() == between:
                time.sleep(0.001)
            _work(request, store)
        os.write(writing, str(worker).encode())
        os._exit(0)
    os.close(writing)
    os.wait()
    with open(reading, "rb") as pipe:
        return int(pipe.readline())


def _work(request: dict[str, Any], store: Store | None) -> NoReturn:
    """Does what `python -m advsweep.sweep.worker.main` does, in this forked process."""
    code = 1
    try:
        os.setsid()
        os.chdir(request["folder"])
        os.environ.clear()
        os.environ.update(request["environment"])
        log = os.open(request["log"], os.O_WRONLY | os.O_APPEND | os.O_CREAT, FILE_MODE)
        os.dup2(log, sys.stdout.fileno())
        os.dup2(log, sys.stderr.fileno())
        os.close(log)
        if request["cores"]:
            os.sched_setaffinity(0, request["cores"])

        from advsweep.sweep.worker import main as worker

        code = worker.main(request["arguments"], store)
        logging.shutdown()
    except BaseException:  # noqa: BLE001 - nothing may return to the server's own loop
        traceback.print_exc()
    finally:
        # A regular exit tears down torch, which costs as much as a short run.
        os._exit(code)


if __name__ == "__main__":
    main()
