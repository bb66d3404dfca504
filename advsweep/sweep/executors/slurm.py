"""Jobs of a Slurm cluster, submitted as arrays by submitit."""

from __future__ import annotations

import getpass
import math
import os
import shlex
import subprocess
import sys
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from enum import Enum
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar

from advsweep.components import option
from advsweep.errors import ConfigError
from advsweep.store.owners import process_started
from advsweep.sweep.executors.base import Job, QueueEntry, QueueExecutor
from advsweep.sweep.executors.remote import STORE_VARIABLE, RemoteJob
from advsweep.sweep.retry_policy import Policy

if TYPE_CHECKING:
    from advsweep.backends.base import Run
    from advsweep.sweep.executors.base import Resources
    from advsweep.sweep.scheduler.queue_job import QueueJob

SIDE_BY_SIDE = 256
SQUEUE_SECONDS = 120


class Cluster(Enum):
    """Where submitit has the jobs run."""

    SLURM = "slurm"
    LOCAL = "local"


@dataclass(kw_only=True)
class SlurmExecutor(QueueExecutor):
    """One job of an array per run; the command returns when all are submitted.

    Every machine has to have the same folders and to reach the store: a SQLite file will do
    for one machine, several need a server.

    Near the end of its time, and when it is preempted, a run writes a checkpoint and its job
    is queued again, by the time limit at most three times. The job tries its run again as often
    as `--retries` says, those tries included that it made before it was queued again. What has
    failed for good, or is lost with its job, is submitted when the command is given again.

    Departures: submitit's default of 5 minutes is a day here.
    """

    name: ClassVar[str] = "slurm"
    limits: ClassVar[frozenset[str]] = frozenset({"time", "memory"})

    cluster: Cluster = option(
        Cluster.SLURM,
        identity=False,
        help="'local': processes of this machine, all at once, to try it out",
    )
    partition: str | None = option(None, identity=False, help="null: the cluster's default")
    account: str | None = option(None, identity=False, help="null: the user's default")
    minutes: int = option(1440, ge=1, identity=False, help="the time limit of each job")
    memory: float | None = option(
        None, gt=0, identity=False, help="GB of each run; null: the cluster's default"
    )
    setup: tuple[str, ...] = option(
        (), identity=False, help="shell lines to run first, such as 'module load cuda'"
    )
    array_size: int = option(
        1000, ge=1, identity=False, help="jobs in one array; at most the cluster's MaxArraySize"
    )

    def prepare(self, resources: Resources, runs: Iterable[Run]) -> None:
        super().prepare(resources, runs)
        if not resources.gpus.is_integer():
            raise ConfigError(
                f"resources.gpus: expected whole GPUs, as Slurm gives out no shares of one, "
                f"got {resources.gpus:g}"
            )

    def capacity(self) -> int:
        return self.jobs or SIDE_BY_SIDE

    def queued(self, names: Iterable[str]) -> dict[str, QueueEntry]:
        names = set(names)
        local = {name for name in names if "@" in name}
        alive = {name for name in local if name == _process_name(name.partition("@")[0])}
        return dict.fromkeys(alive, QueueEntry("RUNNING")) | self._in_slurm(names - local)

    def _in_slurm(self, names: set[str]) -> dict[str, QueueEntry]:
        """Those of these jobs that squeue lists."""
        if not names:
            return {}
        # All that the user has: of jobs by name, one that is long gone would be an error.
        what = ("--noheader", "--array", "--format=%i %T %r", f"--user={getpass.getuser()}")
        try:
            done = subprocess.run(
                ["squeue", *what],
                capture_output=True,
                text=True,
                check=True,
                timeout=SQUEUE_SECONDS,
            )
        except (OSError, subprocess.SubprocessError) as error:
            told = getattr(error, "stderr", None) or error
            raise ConfigError(
                f"executor: expected squeue to tell which runs are queued, got: {str(told).strip()}"
            ) from error
        listed = (line.split(maxsplit=2) for line in done.stdout.splitlines())
        return {
            name: QueueEntry(state, "" if reason == "None" else reason)
            for name, state, reason in listed
            if name in names
        }

    def submit(
        self, jobs: Sequence[Job], folder: Path, side_by_side: int, policy: Policy
    ) -> Iterator[Mapping[int, str]]:
        batches, threads = list(_batches(jobs, self.array_size)), self.resources.cpus
        for batch in batches:
            # The limit is an array's own; those of one command share what there may be.
            executor = self._executor(folder, max(1, side_by_side // len(batches)))
            try:
                with _passed_on(batch[0].store_url), executor.batch():
                    orders = [RemoteJob.of(job, threads).without_secrets() for job in batch]
                    submitted = [executor.submit(SlurmJob(order, policy)) for order in orders]
            except (OSError, RuntimeError) as error:
                raise ConfigError(
                    f"executor: expected Slurm to take {len(batch)} jobs, got: {error}"
                ) from error
            names = [self._name(task.job_id) for task in submitted]
            yield {job.run_id: name for job, name in zip(batch, names, strict=True)}

    def _executor(self, folder: Path, side_by_side: int) -> Any:
        submitit = _import_submitit()
        try:
            python = {f"{self.cluster.value}_python": f"{shlex.quote(sys.executable)} -P"}
            executor = submitit.AutoExecutor(folder, self.cluster.value, **python)
        except RuntimeError as error:
            raise ConfigError(
                f"executor: expected a machine of a Slurm cluster: {error} "
                "(executor.cluster=local tries it out without one)"
            ) from error
        wanted = {
            "name": "advsweep",
            "timeout_min": self.minutes,
            "cpus_per_task": self.resources.cpus,
            "gpus_per_node": int(self.resources.gpus) or None,
            "mem_gb": self.memory,
            "slurm_partition": self.partition,
            "slurm_account": self.account,
            "slurm_array_parallelism": side_by_side,
            f"{self.cluster.value}_setup": list(self.setup) or None,
        }
        executor.update_parameters(**{k: v for k, v in wanted.items() if v is not None})
        return executor

    def _name(self, job_id: str) -> str:
        return _process_name(job_id) if self.cluster is Cluster.LOCAL else job_id


@dataclass
class SlurmJob:
    """What a job does: it executes its run.

    Attributes:
        retries: how often the job tried its run again before it was queued again.
    """

    order: RemoteJob
    policy: Policy
    retries: int = 0
    _attending: QueueJob | None = None

    def __call__(self) -> str:
        """How the run ended, in a word."""
        # Not on the machine that submits, where a job's modules may take their time.
        from advsweep.sweep.scheduler.queue_job import QueueJob

        self._attending = QueueJob(self.order, self.policy, self.retries)
        self._attending.run()
        return self._attending.end.value if self._attending.end else "elsewhere"

    def checkpoint(self) -> Any:
        """Stops the worker; what is left of its run, for submitit to queue again.

        submitit calls it in a signal's handler, before the time is up or on preemption.
        """
        retries = self.retries
        if self._attending is not None:
            self._attending.interrupt()
            retries = self._attending.retries
        return _import_submitit().helpers.DelayedSubmission(
            SlurmJob(self.order, self.policy, retries)
        )


@contextmanager
def _passed_on(store_url: str) -> Iterator[None]:
    """A stretch in which jobs are submitted: Slurm gives them the environment of `sbatch`.

    The files that submitit writes for them hold no URL with a password.
    """
    # submitit starts its local jobs without `-P`.
    changes = {STORE_VARIABLE: store_url, "PYTHONSAFEPATH": "1"}
    before = {key: os.environ.get(key) for key in changes}
    os.environ.update(changes)
    try:
        yield
    finally:
        for key, value in before.items():
            if value is None:
                del os.environ[key]
            else:
                os.environ[key] = value


def _batches(jobs: Sequence[Job], size: int) -> Iterator[Sequence[Job]]:
    """The jobs in as few parts as there have to be, all of about the same size."""
    number = math.ceil(len(jobs) / size)
    for part in range(number):
        yield jobs[part * len(jobs) // number : (part + 1) * len(jobs) // number]


def _process_name(pid: str) -> str:
    """A process of this machine, told from later ones of the same pid by when it started."""
    return f"{pid}@{process_started(int(pid))}"


def _import_submitit() -> Any:
    try:
        import submitit
    except ModuleNotFoundError as error:
        raise ConfigError(
            "executor: expected the package submitit for 'slurm', which is not installed; "
            "install advsweep[slurm]"
        ) from error
    return submitit
