"""An executor for tests: workers are forks of the test's process, which start in milliseconds."""

from __future__ import annotations

import faulthandler
import logging
import os
import signal
from dataclasses import dataclass
from typing import ClassVar

from advsweep.store import open_store
from advsweep.sweep.executors.base import Executor, Handle
from advsweep.sweep.worker.main import Starter, work_on


@dataclass
class Child(Handle):
    """A forked process."""

    process: int
    code: int | None = None

    def pid(self):
        return self.process

    def poll(self):
        if self.code is None:
            pid, status = os.waitpid(self.process, os.WNOHANG)
            self.code = os.waitstatus_to_exitcode(status) if pid else None
        return self.code

    def stop(self):
        self._send(signal.SIGTERM)

    def kill(self):
        self._send(signal.SIGKILL)

    def _send(self, number):
        if self.poll() is None:
            os.kill(self.process, number)


@dataclass(kw_only=True)
class ForkingExecutor(Executor):
    """Starts each worker as a fork of this process, in a session and with a log of its own."""

    name: ClassVar[str] = "forking"
    limits_time: ClassVar[bool] = True
    limits_memory: ClassVar[bool] = True

    def capacity(self):
        return 2

    def start(self, job):
        parent = os.getpid()
        pid = os.fork()
        if pid:
            return Child(pid)
        code = 1
        try:
            job.directory.mkdir(parents=True, exist_ok=True)
            code = self.work(job, parent)
        finally:
            os._exit(code)

    def work(self, job, parent):
        """Trains the run in the forked process; returns the exit code."""
        os.setsid()
        # A worker that a test makes crash would print the stacks of pytest.
        faulthandler.disable()
        self.log_to(job.log)
        self.begin()
        with self.open_store(job) as store:
            return work_on(store, [job.run_id, *job.others], job.evaluations, Starter(pid=parent))

    def log_to(self, file):
        logging.basicConfig(filename=file, level="INFO", force=True)

    def begin(self):
        """Is called in each worker before it opens the store."""

    def open_store(self, job):
        return open_store(job.store_url, create=False)
