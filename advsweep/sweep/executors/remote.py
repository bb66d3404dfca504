"""A worker elsewhere: what is sent there, and the process that it becomes."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Self

from advsweep.local_files import make_private_folder, open_private
from advsweep.redaction import redacted, redacted_arguments
from advsweep.sweep.executors.base import Handle, Job, kill_session
from advsweep.sweep.worker.environment import COMMAND_VARIABLE

_THREADS = ("OMP_NUM_THREADS", "MKL_NUM_THREADS", "OPENBLAS_NUM_THREADS", "NUMEXPR_NUM_THREADS")

STORE_VARIABLE = "ADVSWEEP_STORE"
"""Holds the store's URL for a process that is started; command lines are public."""

_OWN = "ADVSWEEP_"


@dataclass(frozen=True)
class RemoteJob:
    """A job in the form in which it travels to another process or machine.

    The Python environment, the run's folder and the store have to be there under the same
    names.

    Attributes:
        environment: variables to set there, our own of here among them.
    """

    run_id: int
    evaluations: tuple[str, ...]
    directory: Path
    environment: Mapping[str, str]

    @classmethod
    def of(cls, job: Job, threads: int) -> Self:
        """The order for a job whose worker computes with so many threads."""
        environment = {key: value for key, value in os.environ.items() if key.startswith(_OWN)}
        environment |= dict.fromkeys(_THREADS, str(threads))
        environment |= {"OMP_WAIT_POLICY": "PASSIVE", "TOKENIZERS_PARALLELISM": "false"}
        environment |= {STORE_VARIABLE: job.store_url}
        environment |= {COMMAND_VARIABLE: redacted_arguments(sys.argv)}
        evaluations = tuple(json.dumps(settings) for settings in job.evaluations)
        return cls(job.run_id, evaluations, job.directory, environment)

    def without_secrets(self) -> Self:
        """The order without the store's URL if that holds a secret, for a file or a queue.

        The process that gets the order must then find the URL in its own environment.
        """
        url = self.environment[STORE_VARIABLE]
        if redacted(url) == url:
            return self
        environment = {k: v for k, v in self.environment.items() if k != STORE_VARIABLE}
        return replace(self, environment=environment)

    def evaluation_settings(self) -> tuple[dict[str, Any], ...]:
        """The job's `evaluations`."""
        return tuple(json.loads(settings) for settings in self.evaluations)

    def start(self) -> subprocess.Popen[bytes]:
        """Starts the worker; it stops with a checkpoint when this process is gone.

        Raises:
            OSError: the run's folder or the process cannot be made.
        """
        command = [
            *(sys.executable, "-P", "-m", "advsweep.sweep.worker.main"),
            *("--run", str(self.run_id)),
            *("--parent-pid", str(os.getpid())),
        ]
        for settings in self.evaluations:
            command += ["--evaluation", settings]
        make_private_folder(self.directory)
        with open_private(self.directory / "log.txt", "ab") as log:
            return subprocess.Popen(
                command,
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=subprocess.STDOUT,
                env=os.environ | self.environment | {"PYTHONUNBUFFERED": "1"},
                start_new_session=True,
            )


@dataclass(frozen=True)
class ProcessHandle(Handle):
    """A worker that is a child of this process."""

    process: subprocess.Popen[bytes]

    def poll(self) -> int | None:
        return self.process.poll()

    def pid(self) -> int | None:
        return self.process.pid

    def stop(self) -> None:
        self.process.terminate()

    def kill(self) -> None:
        if self.process.poll() is None:
            kill_session(self.process.pid)
