"""Processes of this machine."""

from __future__ import annotations

import json
import os
import shlex
import subprocess
import sys
from dataclasses import dataclass
from typing import ClassVar

from advsweep.sweep.environment import COMMAND_VARIABLE
from advsweep.sweep.executors.base import Executor, Handle, Job

ONE_THREAD = {
    "OMP_NUM_THREADS": "1",
    "MKL_NUM_THREADS": "1",
    "OPENBLAS_NUM_THREADS": "1",
    "NUMEXPR_NUM_THREADS": "1",
    "VECLIB_MAXIMUM_THREADS": "1",
    "OMP_WAIT_POLICY": "PASSIVE",
    "TOKENIZERS_PARALLELISM": "false",
}
"""Runs share the cores by being side by side; threads that spin cost several times over."""


@dataclass(kw_only=True)
class LocalExecutor(Executor):
    """One process per run, one CPU thread each, in a session of its own.

    The session keeps Ctrl-C to the parent, which asks its workers to stop. A worker's
    output goes to `log.txt` in the run's folder.
    """

    name: ClassVar[str] = "local"

    def capacity(self) -> int:
        if self.jobs is not None:
            return self.jobs
        if hasattr(os, "sched_getaffinity"):
            return len(os.sched_getaffinity(0))
        return os.cpu_count() or 1

    def start(self, job: Job) -> Handle:
        command = [
            *(sys.executable, "-m", "advsweep.sweep.worker"),
            *("--run", str(job.run_id)),
            *("--parent-pid", str(os.getpid())),
        ]
        for settings in job.evaluations:
            command += ["--evaluation", json.dumps(settings)]
        # The store's URL may hold a password, and command lines are there for all to read.
        environment = os.environ | ONE_THREAD | {"ADVSWEEP_STORE": job.store_url}
        environment |= {COMMAND_VARIABLE: shlex.join(sys.argv), "PYTHONUNBUFFERED": "1"}
        job.directory.mkdir(parents=True, exist_ok=True)
        with open(job.directory / "log.txt", "ab") as log:
            process = subprocess.Popen(
                command,
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=subprocess.STDOUT,
                env=environment,
                start_new_session=True,
            )
        return LocalHandle(process)


@dataclass
class LocalHandle(Handle):
    """A child process."""

    process: subprocess.Popen[bytes]

    def poll(self) -> int | None:
        return self.process.poll()

    def stop(self) -> None:
        self.process.terminate()

    def kill(self) -> None:
        self.process.kill()
