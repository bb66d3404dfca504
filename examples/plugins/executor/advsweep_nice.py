"""An executor: workers of low priority, for a machine that others use too."""

import contextlib
import os
from dataclasses import dataclass
from typing import ClassVar

from advsweep.components import option
from advsweep.sweep.executors.base import Executor
from advsweep.sweep.executors.processes import ProcessHandle, start_worker, worker_environment


@dataclass(kw_only=True)
class Nice(Executor):
    """Starts each worker as a process with a niceness, so that other work comes first."""

    name: ClassVar[str] = "nice"
    limits_time: ClassVar[bool] = True
    limits_memory: ClassVar[bool] = True

    niceness: int = option(19, ge=0, le=19, identity=False, help="0: usual priority; 19: lowest")

    def capacity(self):
        return self.jobs or max(1, len(os.sched_getaffinity(0)) // self.resources.cpus)

    def start(self, job):
        environment = worker_environment(self.resources.cpus, job.store_url)
        process = start_worker(job, {**os.environ, **environment})
        with contextlib.suppress(ProcessLookupError):  # It may have ended already.
            os.setpriority(os.PRIO_PROCESS, process.pid, self.niceness)
        return ProcessHandle(process)
