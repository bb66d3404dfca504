"""Runs in this very process, one after another: for a debugger, and for tests."""

from __future__ import annotations

import signal
from dataclasses import dataclass
from typing import ClassVar

from advsweep.sweep.executors.base import Executor, Handle, Job
from advsweep.sweep.exit_codes import STOPPED


@dataclass(kw_only=True)
class DebugExecutor(Executor):
    """Works on a run before `start` returns. What ends the process ends the sweep.

    Nothing is given out: a run has the cores and GPUs that the process has.
    """

    name: ClassVar[str] = "debug"
    stacks: ClassVar[bool] = True

    def capacity(self) -> int:
        return 1

    def start(self, job: Job) -> Handle:
        from advsweep.store import Owner, open_store
        from advsweep.sweep.retry_policy import store_patience
        from advsweep.sweep.worker.main import work
        from advsweep.sweep.worker.stacked import train_stacked

        me = Owner.current()
        patience = store_patience()
        with open_store(job.store_url, create=False, patience=patience, wait=True) as store:
            if job.others:
                ids = [job.run_id, *job.others]
                code = train_stacked(store, ids, job.evaluations, None, holder=me)
            else:
                [record] = store.runs.select(ids=[job.run_id])
                code = work(store, record, job.evaluations, None, holder=me)
        if code == STOPPED:
            # The request reached the run alone; the sweep is to hear of it too.
            signal.raise_signal(signal.SIGTERM)
        return Ended(code)


@dataclass(frozen=True)
class Ended(Handle):
    """Work that is over."""

    code: int

    def poll(self) -> int | None:
        return self.code

    def stop(self) -> None:
        """There is nothing left to stop."""

    def kill(self) -> None:
        """There is nothing left to kill."""
