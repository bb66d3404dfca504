"""The process that workers are forked from: `python -m advsweep.sweep.executors.forkserver_main`.

It imports once what every worker needs and forks when told to. A worker is left without a
parent at once, whereupon the executor's process adopts it: that sees it end, and whatever
happens to this process is nothing to the workers.
"""

from __future__ import annotations

import gc
import importlib
import json
import logging
import os
import socket
import sys
import time
import traceback
from typing import TYPE_CHECKING, Any, NoReturn

from advsweep.errors import StoreError
from advsweep.local_files import FILE_MODE
from advsweep.store import open_store
from advsweep.sweep.retry_policy import store_patience
from advsweep.sweep.worker.environment import describe_environment
from advsweep.sweep.worker.warm_up import warm_up

if TYPE_CHECKING:
    from advsweep.store import Store

READY = b"ready"
ORDER_BYTES = 1 << 22


def main() -> None:
    """Serves the socket whose descriptor is the first argument until its other end closes.

    The other arguments are modules to import. After them it says `READY`, and answers every
    order with the pid of a worker.
    """
    descriptor, *modules = sys.argv[1:]
    with socket.socket(fileno=int(descriptor)) as connection:
        for module in modules:
            importlib.import_module(module)
        describe_environment()
        store = _open_store()
        # Pages that the collector leaves alone stay shared with the workers.
        gc.collect()
        gc.freeze()
        connection.sendall(READY)
        while order := connection.recv(ORDER_BYTES):
            connection.sendall(str(_fork(json.loads(order), store, connection)).encode())


def _open_store() -> Store | None:
    """The workers' store, without connections but with all that a worker has compiled.

    None where it cannot be opened now: the workers wait for it, and say why.
    """
    try:
        store = open_store(create=False, patience=store_patience())
        warm_up(store)
    except StoreError:
        return None
    store.close()
    return store


def _fork(order: dict[str, Any], store: Store | None, connection: socket.socket) -> int:
    """Makes a worker and returns its pid."""
    reading, writing = os.pipe()
    if os.fork() == 0:
        between = os.getpid()
        worker = os.fork()
        if worker == 0:
            for descriptor in (reading, writing, connection.detach()):
                os.close(descriptor)
            while os.getppid() == between:
                time.sleep(0.001)
            _work(order, store)
        os.write(writing, str(worker).encode())
        os._exit(0)
    os.close(writing)
    os.wait()
    with open(reading, "rb") as told:
        return int(told.readline())


def _work(order: dict[str, Any], store: Store | None) -> NoReturn:
    """What `python -m advsweep.sweep.worker.main` does, in this process that was forked for it."""
    code = 1
    try:
        os.setsid()
        os.chdir(order["folder"])
        os.environ.clear()
        os.environ.update(order["environment"])
        log = os.open(order["log"], os.O_WRONLY | os.O_APPEND | os.O_CREAT, FILE_MODE)
        os.dup2(log, sys.stdout.fileno())
        os.dup2(log, sys.stderr.fileno())
        os.close(log)
        if order["cores"]:
            os.sched_setaffinity(0, order["cores"])

        from advsweep.sweep.worker import main

        code = main.main(order["arguments"], store)
        logging.shutdown()
    except BaseException:  # noqa: BLE001 - nothing may get back into the server's own loop
        traceback.print_exc()
    finally:
        # Taking down the interpreter, torch and all, would cost as much as the work of a
        # short run.
        os._exit(code)


if __name__ == "__main__":
    main()
