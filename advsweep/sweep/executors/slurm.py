"""Slurm: jobs of a cluster, submitted as arrays by submitit."""

from __future__ import annotations

import getpass
import io
import math
import os
import shlex
import subprocess
import sys
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, redirect_stderr
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar, Literal

from advsweep.components import Retired, option
from advsweep.errors import ConfigError, counted
from advsweep.machine import output_of
from advsweep.packages import import_extra
from advsweep.store.owners import process_started
from advsweep.sweep.executors.base import QueueExecutor, Resources, Work
from advsweep.sweep.executors.processes import STORE_VARIABLE

if TYPE_CHECKING:
    from advsweep.backends.base import Run

SIDE_BY_SIDE = 256
SQUEUE_SECONDS = 120
# Memory of the process of a job that watches its worker.
JOB_GB = 1.0


@dataclass(kw_only=True)
class SlurmExecutor(QueueExecutor):
    """Submits an array of jobs, each of which trains one run after another until none is left.

    There are as many jobs as runs, at most `jobs` or 256; the command returns when they are
    submitted. Every machine must have the same folders and reach the store: a SQLite file
    suffices for one machine, several need a database server.

    Near the end of its time limit, and when it is preempted, a job has its run write a checkpoint
    and is queued again, at most three times for the time limit. A job retries its runs as often
    as `--retries` allows. Runs that have failed, or are lost with their job, are submitted when
    the command is repeated.

    Departures: submitit's default of 5 minutes is a day here.
    """

    name: ClassVar[str] = "slurm"
    retired: ClassVar[Retired] = {"array_size": ()}
    limits_time: ClassVar[bool] = True
    limits_memory: ClassVar[bool] = True

    cluster: Literal["slurm", "local"] = option(
        "slurm",
        identity=False,
        help="'local': processes of this machine, all at once, to try it out",
    )
    partition: str | None = option(None, identity=False, help="null: the cluster's default")
    account: str | None = option(None, identity=False, help="null: the user's default")
    minutes: int = option(1440, ge=1, identity=False, help="the time limit of each job")
    memory: float | None = option(
        None,
        gt=0,
        identity=False,
        help="GB of each job; null: a little more than resources.memory, or the cluster's default",
    )
    setup: tuple[str, ...] = option(
        (), identity=False, help="shell lines to run first, such as 'module load cuda'"
    )

    def prepare(self, resources: Resources, runs: Iterable[Run]) -> None:
        super().prepare(resources, runs)
        if not resources.gpus.is_integer():
            raise ConfigError(
                f"resources.gpus: expected whole GPUs, as Slurm gives out no shares of one, "
                f"got {resources.gpus:g}"
            )
        limit = resources.memory_bytes
        if self.memory is not None and limit is not None and limit > self.memory * 2**30:
            raise ConfigError(
                f"executor.memory: expected at least resources.memory={resources.memory}, got "
                f"{self.memory:g} GB"
            )

    def capacity(self) -> int:
        return self.jobs or SIDE_BY_SIDE

    def _job_memory(self) -> float | None:
        """Return the GB that each job asks for; None: the cluster's default."""
        limit = self.resources.memory_bytes
        if self.memory is not None or limit is None:
            return self.memory
        # Slurm ends the whole job beyond it, with the process that would record why.
        return math.ceil(limit / 2**30 + JOB_GB)

    def queued(self, names: Iterable[str]) -> set[str]:
        asked = set(names)
        local = {name for name in asked if "@" in name}
        alive = {name for name in local if name == process_name(name.partition("@")[0])}
        if asked == local:
            return alive
        # All jobs of the user: squeue exits with an error for a job id that is long gone.
        what = ("--noheader", "--array", "--format=%i", f"--user={getpass.getuser()}")
        try:
            listed = output_of("squeue", *what, seconds=SQUEUE_SECONDS)
        except (OSError, subprocess.SubprocessError) as error:
            output = getattr(error, "stderr", None) or error
            raise ConfigError(
                f"executor: expected squeue to list the queued runs, got: {str(output).strip()}"
            ) from error
        return alive | asked.intersection(listed.split())

    def submit(self, works: Sequence[Work], folder: Path, store_url: str) -> list[str]:
        submitit = import_extra("submitit", "slurm", "executor=slurm")
        python = {f"{self.cluster}_python": f"{shlex.quote(sys.executable)} -P"}
        parameters = {
            "name": "advsweep",
            "timeout_min": self.minutes,
            "cpus_per_task": self.resources.cpus,
            "gpus_per_node": int(self.resources.gpus) or None,
            "mem_gb": self._job_memory(),
            "slurm_partition": self.partition,
            "slurm_account": self.account,
            "slurm_array_parallelism": len(works),
            f"{self.cluster}_setup": list(self.setup) or None,
        }
        try:
            executor = submitit.AutoExecutor(folder, self.cluster, **python)
        except RuntimeError as error:
            raise ConfigError(
                f"executor: expected a machine of a Slurm cluster: {error} "
                "(executor.cluster=local tries it out without one)"
            ) from error
        # `sbatch` passes the environment on to its jobs: the files that submitit writes for them
        # hold no URL with a password. submitit starts its local jobs without `-P`.
        passed_on = {STORE_VARIABLE: store_url, "PYTHONSAFEPATH": "1"}
        executor.update_parameters(**{k: v for k, v in parameters.items() if v is not None})
        try:
            # submitit prints what it raises as well.
            with _variables(passed_on), redirect_stderr(io.StringIO()), executor.batch():
                submitted = [executor.submit(SlurmJob(work)) for work in works]
        except (OSError, RuntimeError) as error:
            raise ConfigError(
                f"executor: expected Slurm to take {counted(len(works), 'job')}, got: "
                f"{_in_one_line(error)}; executor.jobs=N submits fewer jobs, which train all runs; "
                "other limits: executor.partition, executor.account and executor.minutes"
            ) from error
        names = [task.job_id for task in submitted]
        if self.cluster == "local":
            return [process_name(pid) for pid in names]
        return names


def _in_one_line(error: Exception) -> str:
    """Return the lines of Slurm's message once each, without its prefix."""
    lines = (line.strip().removeprefix("sbatch: error: ") for line in str(error).splitlines())
    return "; ".join(dict.fromkeys(filter(None, lines)))


@contextmanager
def _variables(values: Mapping[str, str]) -> Iterator[None]:
    """Set variables of the environment within a block."""
    before = {name: os.environ.get(name) for name in values}
    os.environ.update(values)
    try:
        yield
    finally:
        for name, value in before.items():
            if value is None:
                del os.environ[name]
            else:
                os.environ[name] = value


@dataclass
class SlurmJob:
    """The function that a job calls."""

    work: Work

    def __call__(self) -> str:
        return self.work()

    def checkpoint(self) -> Any:
        """Stop the worker and return the job for submitit to queue again.

        submitit calls it in a signal handler, before the time is up or on preemption.
        """
        import submitit

        # First the checkpoint: Slurm kills what is left of the job soon after the signal.
        self.work.interrupt()
        return submitit.helpers.DelayedSubmission(SlurmJob(self.work))


def process_name(pid: str) -> str:
    """Return a name for a local process: its start time sets it apart from reused pids."""
    return f"{pid}@{process_started(int(pid))}"
