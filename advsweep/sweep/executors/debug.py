"""The debug executor: runs in this very process, one after another.

The smallest executor that there is, for breakpoints and tests. It shows what an executor is asked
for: how many jobs fit (`capacity`), and to start one (`start`), which returns a handle that the
scheduler polls until the job has an exit code (`advsweep.sweep.events`).
"""

from __future__ import annotations

import signal
from dataclasses import dataclass
from typing import ClassVar

from advsweep.sweep.events import STOPPED
from advsweep.sweep.executors.base import Executor, Handle, Job


@dataclass(kw_only=True)
class DebugExecutor(Executor):
    """Completes a run in this process before `start` returns. A crash ends the sweep.

    Nothing is allocated: a run has the cores and GPUs of this process.
    """

    name: ClassVar[str] = "debug"
    stacks: ClassVar[bool] = True

    def capacity(self) -> int:
        return 1

    def start(self, job: Job) -> Handle:
        from advsweep.store import Owner, open_store
        from advsweep.sweep.retry_policy import store_patience
        from advsweep.sweep.worker.main import Starter, work_on

        patience = store_patience()
        with open_store(job.store_url, create=False, patience=patience, wait=True) as store:
            run_ids = [job.run_id, *job.others]
            starter = Starter(holder=Owner.current(), is_pulled=job.is_pulled)
            code = work_on(store, run_ids, job.evaluations, starter)
        if code == STOPPED:
            # The signal stopped the run alone; the scheduler must receive it as well.
            signal.raise_signal(signal.SIGTERM)
        return EndedHandle(code)


@dataclass(frozen=True)
class EndedHandle(Handle):
    """The handle of a run that has ended."""

    code: int

    def poll(self) -> int | None:
        return self.code

    def stop(self) -> None:
        """Does nothing."""

    def kill(self) -> None:
        """Does nothing."""
