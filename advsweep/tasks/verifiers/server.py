"""The process that verifiers judge in: it forks workers and kills those that take too long.

Started as a module with the descriptor of a socket. It imports what the verifier needs once,
so that a worker that had to be killed is replaced in milliseconds, and has no threads, which
makes forking safe. It ends when the other end of the socket is closed, and its workers end
with it, whatever they are doing.
"""

from __future__ import annotations

import ctypes
import os
import resource
import signal
import sys
import time
from collections import deque
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from multiprocessing.connection import Connection, Pipe, wait
from typing import Any

from advsweep.errors import AdvsweepError
from advsweep.tasks.verifiers import VERIFIERS
from advsweep.tasks.verifiers.base import (
    UNREADABLE_REFERENCE,
    Outcome,
    ReferenceAnswer,
    Verdict,
    Verifier,
)

Job = tuple[ReferenceAnswer, str | None]
"""A completion to judge; None: whether the reference answer can be read."""

JobResult = Verdict | None
"""Of a job; None where the job was about a reference answer that can be read."""

_CHUNK = 8
"""Jobs given to a worker at a time: fewer messages, and little to do again for another."""

_SET_PARENT_DEATH_SIGNAL = 1  # PR_SET_PDEATHSIG of prctl(2)


_CERTAIN_SHARE = 0.5
"""Share of the deadline that a job computes for at least, to be at fault beyond doubt."""


@dataclass(frozen=True)
class QueuedJob:
    """A job on its way to its answer.

    Attributes:
        number: the job's place in its batch.
        alone: true for the second try of a job, which has no other beside it.
        blame: how judging a completion ended. Only the reference answer is read again then: if that
            succeeds, the completion is to blame, and wrong.
    """

    number: int
    job: Job
    alone: bool = False
    blame: str = ""

    def answer(self, found: JobResult) -> JobResult:
        """The answer to the job, from what a worker found."""
        if not self.blame:
            return found
        if found is None:
            return Verdict(Outcome.WRONG, reason=self.blame)
        return Verdict(Outcome.UNSCORABLE, reason=UNREADABLE_REFERENCE)


@dataclass
class VerifierProcess:
    """A process that judges one job after the other.

    Attributes:
        tasks: those that it has, the present one first.
        since: when it began with the present one.
        computed: CPU seconds that it and its children had taken by then.
    """

    pid: int
    connection: Connection
    tasks: deque[QueuedJob] = field(default_factory=deque)
    since: float = 0.0
    computed: float = 0.0


class JobBatch:
    """The jobs of one call: those that wait, those that are suspect, and the answers so far.

    A completion that takes longer than the deadline, or that ends its process, is wrong: a model
    could choose to be left out of the count otherwise. Where the machine may be at fault, as it
    is short of memory or of time, the job is tried once more with no other beside it.
    """

    def __init__(self, jobs: Sequence[Job]) -> None:
        self.answers: list[JobResult] = [None] * len(jobs)
        self._waiting = deque(QueuedJob(number, job) for number, job in enumerate(jobs))
        self._suspects: deque[QueuedJob] = deque()

    @property
    def is_left(self) -> bool:
        """Whether there are tasks that no worker has."""
        return bool(self._waiting or self._suspects)

    def take(self, others: bool) -> deque[QueuedJob]:
        """The next tasks for a worker; none if there are none for it now.

        Args:
            others: whether other workers are busy.
        """
        if self._waiting:
            return deque(self._waiting.popleft() for _ in range(min(_CHUNK, len(self._waiting))))
        return deque([self._suspects.popleft()] if self._suspects and not others else [])

    def answered(self, task: QueuedJob, found: JobResult) -> None:
        self.answers[task.number] = task.answer(found)

    def failed(self, tasks: deque[QueuedJob], reason: str, *, certain: bool) -> None:
        """Puts back the tasks of a worker that is gone, of which the first has no answer.

        Args:
            certain: true if nothing but the job can be at fault.
        """
        task, *others = tasks
        self._waiting.extendleft(reversed(others))
        reference, completion = task.job
        if not (certain or task.alone):
            self._suspects.append(replace(task, alone=True))
        elif completion is None:
            self.answered(task, Verdict(Outcome.UNSCORABLE, reason=reason))
        else:
            self._waiting.appendleft(QueuedJob(task.number, (reference, None), blame=reason))


class VerifierServer:
    """Distributes jobs over workers and watches their deadlines."""

    def __init__(
        self, verifier: Verifier, workers: int, deadline: float, client: Connection
    ) -> None:
        self._verifier = verifier
        self._deadline = deadline
        self._client = client
        self._workers: list[VerifierProcess] = []
        for _ in range(workers):
            self._workers.append(self._fork())

    def serve(self, jobs: Sequence[Job]) -> list[JobResult]:
        """The answers to some jobs, in their order.

        Raises:
            EOFError: the client is gone.
        """
        batch = JobBatch(jobs)
        while batch.is_left or any(worker.tasks for worker in self._workers):
            self._hand_out(batch)
            busy = [worker for worker in self._workers if worker.tasks]
            left = min(worker.since for worker in busy) + self._deadline - time.monotonic()
            ready = wait([self._client, *(worker.connection for worker in busy)], max(left, 0))
            if self._client in ready:
                raise EOFError  # it says nothing before it has its answers
            for worker in busy:
                if worker.connection in ready:
                    self._receive(worker, batch)
                elif time.monotonic() >= worker.since + self._deadline:
                    _, computed = self._replace(worker)
                    certain = computed - worker.computed >= _CERTAIN_SHARE * self._deadline
                    reason = f"it took more than {self._deadline:g} s"
                    batch.failed(worker.tasks, reason, certain=certain)
        return batch.answers

    def _hand_out(self, batch: JobBatch) -> None:
        for worker in self._workers:
            if not worker.tasks:
                worker.tasks = batch.take(others=any(other.tasks for other in self._workers))
                worker.since = time.monotonic()
                if worker.tasks:
                    with suppress(OSError):  # it died while it was idle, which `serve` notices
                        worker.connection.send([task.job for task in worker.tasks])

    def _receive(self, worker: VerifierProcess, batch: JobBatch) -> None:
        """Takes an answer of a worker, or notices that it is dead."""
        try:
            found, worker.computed = worker.connection.recv()
        except (EOFError, OSError):
            code, _ = self._replace(worker)
            how = signal.Signals(-code).name if code < 0 else f"exit code {code}"
            batch.failed(worker.tasks, f"it ended the verifier ({how})", certain=False)
        else:
            batch.answered(worker.tasks.popleft(), found)
            worker.since = time.monotonic()

    def _replace(self, worker: VerifierProcess) -> tuple[int, float]:
        """Ends a worker and starts another; the exit code and CPU seconds of the first."""
        os.kill(worker.pid, signal.SIGKILL)
        _, status, usage = os.wait4(worker.pid, 0)
        worker.connection.close()
        self._workers[self._workers.index(worker)] = self._fork()
        return os.waitstatus_to_exitcode(status), usage.ru_utime + usage.ru_stime

    def _fork(self) -> VerifierProcess:
        ours, theirs = Pipe()
        parent = os.getpid()
        pid = os.fork()
        if pid:
            theirs.close()
            return VerifierProcess(pid, ours)
        status = 1
        try:
            # Nobody would notice the server's end, or a worker's, while copies are open here.
            for connection in (ours, self._client, *(w.connection for w in self._workers)):
                connection.close()
            _end_with(parent)
            resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
            if limit := self._verifier.memory_limit:
                resource.setrlimit(resource.RLIMIT_AS, (limit, limit))
            _work(self._verifier, theirs)
            status = 0
        finally:
            os._exit(status)  # whatever happened, nothing of the server's may go on here


def _work(verifier: Verifier, connection: Connection) -> None:
    while True:
        try:
            jobs: list[Job] = connection.recv()
        except EOFError:
            return
        for reference, completion in jobs:
            answer = _judge(verifier, reference, completion)
            connection.send((answer, sum(os.times()[:4])))  # of this process and its children


def _judge(verifier: Verifier, reference: ReferenceAnswer, completion: str | None) -> JobResult:
    """The answer to a job.

    Raises:
        MemoryError: whose memory was short is not known, so this process ends with it.
    """
    if completion is None:
        return None if _can_read(verifier, reference) else _unscorable(UNREADABLE_REFERENCE)
    try:
        return verifier.judge(reference, completion)
    except MemoryError:
        raise
    except (OSError, AdvsweepError) as error:
        return _unscorable(f"the verifier failed ({_text(error)})")
    except Exception as error:  # noqa: BLE001 (whatever libraries make of what models write)
        if not _can_read(verifier, reference):
            return _unscorable(UNREADABLE_REFERENCE)
        return Verdict(Outcome.WRONG, reason=f"the verifier failed ({_text(error)})")


def _can_read(verifier: Verifier, reference: ReferenceAnswer) -> bool:
    try:
        return verifier.reads(reference)
    except MemoryError:
        raise
    except Exception:  # noqa: BLE001 (whatever libraries make of data)
        return False


def _unscorable(reason: str) -> Verdict:
    return Verdict(Outcome.UNSCORABLE, reason=reason)


def _text(error: Exception) -> str:
    return f"{type(error).__name__}: {error}"[:200]


def _end_with(parent: int) -> None:
    """Has this process killed when its parent ends (on Linux)."""
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(_SET_PARENT_DEATH_SIGNAL, signal.SIGKILL)
    if os.getppid() != parent:
        os._exit(1)


def main(descriptor: int) -> None:
    client = Connection(descriptor)
    try:
        settings: Mapping[str, Any] = client.recv()
        verifier = VERIFIERS.build(settings["verifier"])
        verifier.prepare()
        server = VerifierServer(verifier, settings["workers"], settings["deadline"], client)
        while True:
            client.send(server.serve(client.recv()))
    except (EOFError, OSError):
        os._exit(0)  # the client is gone, and the workers go with this process


if __name__ == "__main__":
    main(int(sys.argv[1]))
