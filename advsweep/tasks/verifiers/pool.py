"""Verdicts under a hard deadline: a client, and the process in which verifiers judge.

The process starts as a module with the descriptor of a socket. It imports the needs of the verifier
once, so that a killed worker is replaced in milliseconds, and it has no threads, which makes
forking safe. It ends when the other end of the socket is closed, and its workers end with it.

A process pool of the standard library does not fit: it cannot kill one worker at a deadline, and
it starts its workers from a process with threads. pebble could, but its licence is LGPL-3.0.
"""

from __future__ import annotations

import json
import os
import signal
import socket
import subprocess
import sys
import threading
import time
from collections import deque
from collections.abc import Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from multiprocessing.connection import Connection, Pipe, wait

from advsweep.errors import AdvsweepError, TrainingError, counted
from advsweep.tasks.verifiers import VERIFIERS, isolation
from advsweep.tasks.verifiers.base import (
    UNREADABLE,
    Outcome,
    ReferenceAnswer,
    Verdict,
    Verifier,
    verdict,
)

# A batch that ends its server three times would do so for ever.
_ATTEMPTS = 3


class VerifierPool:
    """Judging processes, each of which is killed if an answer takes longer than the deadline.

    They start on first use and end with this process, however that ends. A pool serves only the
    process that made it; after a fork `pool_for` makes new pools.

    Args:
        workers: number of answers that are judged at the same time.
        deadline: seconds that one answer may take.
    """

    def __init__(self, verifier: Verifier, *, workers: int, deadline: float) -> None:
        self._settings = [verifier.plain(), workers, deadline]
        self._process: subprocess.Popen[bytes] | None = None
        self._connection: Connection | None = None
        self._lock = threading.Lock()

    def judge(self, jobs: Sequence[Job]) -> list[Verdict]:
        """Return the verdicts in the order of the jobs.

        Raises:
            TrainingError: the judging process ended repeatedly.
        """
        if not jobs:
            return []
        with self._lock:
            for _ in range(_ATTEMPTS):
                try:
                    connection = self._connect()
                    connection.send(list(jobs))
                    answers: list[Verdict] = connection.recv()
                    return answers
                except BaseException as error:
                    # If interrupted, a later call must not receive the answers to these jobs, and
                    # the connection may hold half a message.
                    self.close()
                    if not isinstance(error, (EOFError, OSError)):
                        raise
        raise TrainingError(
            f"the process that verifies answers ended {_ATTEMPTS} times with the same "
            f"{counted(len(jobs), 'answer')}; see its errors above"
        )

    def _connect(self) -> Connection:
        if self._connection is None:
            ours, theirs = socket.socketpair()
            module = "advsweep.tasks.verifiers.pool"
            descriptor = theirs.fileno()
            # A socket and not a queue: the end of either process is an EOF for the other.
            with theirs:
                # Its own session keeps Ctrl-C in the terminal from ending it: the training still
                # verifies its last answers and then stops in an orderly way.
                self._process = subprocess.Popen(
                    [sys.executable, "-P", "-m", module, str(descriptor)],
                    stdin=subprocess.DEVNULL,
                    stdout=subprocess.DEVNULL,
                    pass_fds=[descriptor],
                    start_new_session=True,
                )
            self._connection = Connection(ours.detach())
            self._connection.send(self._settings)
        return self._connection

    def close(self) -> None:
        """End the processes; the next call of `judge` starts new ones."""
        if self._connection is not None:
            self._connection.close()
        if self._process is not None:
            self._process.kill()  # its workers end with it
            self._process.wait()
        self._connection = self._process = None


_pools: dict[str, VerifierPool] = {}


def pool_for(verifier: Verifier, *, workers: int, deadline: float) -> VerifierPool:
    """Return this process's pool for a verifier; every call returns the same one."""
    key = json.dumps([verifier.plain(), workers, deadline], sort_keys=True)
    if key not in _pools:
        _pools[key] = VerifierPool(verifier, workers=workers, deadline=deadline)
    return _pools[key]


def _leave_all() -> None:
    """Forget the parent's pools after a fork; they end when no copy of a connection is open."""
    for pool in _pools.values():
        if pool._connection is not None:
            pool._connection.close()
    _pools.clear()


os.register_at_fork(after_in_child=_leave_all)


# A reference answer and a completion to judge; None: only read the reference answer.
Job = tuple[ReferenceAnswer, str | None]

# A late job is certainly at fault if it computed for this share of the deadline.
_CERTAIN_SHARE = 0.5


@dataclass
class _Worker:
    """A process that judges one job after the other.

    Attributes:
        job: the place of its present job in the batch; None while it is idle.
        since: start of the present job (monotonic clock).
        computed: CPU seconds that it and its children had used at that time.
        reads: whether the reference answer of the present job could be read, once that is known.
    """

    pid: int
    connection: Connection
    job: int | None = None
    since: float = 0.0
    computed: float = 0.0
    reads: bool | None = None


@dataclass(frozen=True)
class _Failure:
    """Why a job has no answer.

    Attributes:
        is_certain: whether the job is at fault, and not perhaps a machine that was busy.
    """

    reason: str
    is_certain: bool


@dataclass(frozen=True)
class _Batch:
    """Jobs by number, with the answers so far.

    Attributes:
        waiting: jobs that no worker has had.
        suspects: jobs that failed and are tried once more while no other job runs.
        tried_again: jobs that are or were suspects.
    """

    jobs: Sequence[Job]
    answers: list[Verdict]
    waiting: deque[int]
    suspects: deque[int] = field(default_factory=deque)
    tried_again: set[int] = field(default_factory=set)

    @classmethod
    def of(cls, jobs: Sequence[Job]) -> _Batch:
        return cls(jobs, answers=[UNREADABLE] * len(jobs), waiting=deque(range(len(jobs))))

    def fail(self, worker: _Worker, failure: _Failure) -> None:
        """Try the job of a worker once more, or give it its verdict."""
        number = worker.job
        assert number is not None
        if not failure.is_certain and number not in self.tried_again:
            self.suspects.append(number)
            self.tried_again.add(number)
        elif worker.reads:
            self.answers[number] = Verdict(Outcome.WRONG, reason=failure.reason)
        else:
            # Reading the reference answer did it, which is no fault of the model.
            self.answers[number] = Verdict(Outcome.UNSCORABLE, reason=failure.reason)


class VerifierServer:
    """Distributes jobs over workers and watches their deadlines.

    A completion that exceeds the deadline or ends its process is wrong. If it were unscorable, a
    model could choose to be left out of the count. Where the machine may be at fault, because
    memory or time is short, the job is tried once more while no other job runs.
    """

    def __init__(
        self, verifier: Verifier, workers: int, deadline: float, client: Connection
    ) -> None:
        self._verifier = verifier
        self._deadline = deadline
        self._client = client
        self._workers: list[_Worker] = []
        for _ in range(workers):
            self._workers.append(self._fork())

    def serve(self, jobs: Sequence[Job]) -> list[Verdict]:
        """Return the answers to some jobs, in their order.

        Raises:
            EOFError: the client closed the connection.
        """
        batch = _Batch.of(jobs)
        while True:
            self._start_jobs(batch)
            busy = [worker for worker in self._workers if worker.job is not None]
            if not busy:
                return batch.answers
            # The oldest job is the next to be late; all others may wait that long.
            left = min(worker.since for worker in busy) + self._deadline - time.monotonic()
            ready = wait([self._client, *(worker.connection for worker in busy)], max(left, 0))
            if self._client in ready:
                raise EOFError  # the client sends nothing while it waits for answers
            for worker in busy:
                if worker.connection in ready:
                    failure = self._receive(worker, batch)
                elif time.monotonic() >= worker.since + self._deadline:
                    failure = self._end_late(worker)
                else:
                    failure = None
                if failure is not None:
                    batch.fail(worker, failure)

    def _start_jobs(self, batch: _Batch) -> None:
        """Give each idle worker a job; a suspect starts after all others, and while none runs."""
        for worker in self._workers:
            if worker.job is not None:
                continue
            is_any_running = any(other.job is not None for other in self._workers)
            if batch.waiting:
                number = batch.waiting.popleft()
            elif batch.suspects and not is_any_running:
                number = batch.suspects.popleft()
            else:
                return
            worker.job = number
            worker.since = time.monotonic()
            worker.reads = None
            with suppress(OSError):  # the idle worker died, which is noticed later
                worker.connection.send(batch.jobs[number])

    def _receive(self, worker: _Worker, batch: _Batch) -> _Failure | None:
        """Take what a worker says of its job; return the failure if it died."""
        try:
            message, computed = worker.connection.recv()
        except (EOFError, OSError):
            code, _ = self._replace(worker)
            how = signal.Signals(-code).name if code < 0 else f"exit code {code}"
            return _Failure(f"it ended the verifier ({how})", is_certain=False)
        if isinstance(message, bool):
            worker.reads = message
        else:
            assert worker.job is not None
            batch.answers[worker.job] = message
            worker.job = None
            worker.computed = computed
        return None

    def _end_late(self, worker: _Worker) -> _Failure:
        """Kill a worker whose job is late, and return the failure."""
        _, computed = self._replace(worker)
        # One that slept, or waited for memory or a core, may be quicker alone.
        is_certain = computed - worker.computed >= _CERTAIN_SHARE * self._deadline
        return _Failure(f"it took more than {self._deadline:g} s", is_certain)

    def _replace(self, worker: _Worker) -> tuple[int, float]:
        """Replace a worker; return the exit code and CPU seconds of the old one."""
        # Reaped here, so that its CPU time is known and its number cannot be another process's.
        os.kill(worker.pid, signal.SIGKILL)
        _, status, usage = os.wait4(worker.pid, 0)
        worker.connection.close()
        self._workers[self._workers.index(worker)] = self._fork()
        return os.waitstatus_to_exitcode(status), usage.ru_utime + usage.ru_stime

    def _fork(self) -> _Worker:
        ours, theirs = Pipe()
        pid = isolation.fork()
        if pid:
            theirs.close()
            return _Worker(pid, ours)
        try:
            # An open copy here would hide the end of the server, or of a worker, from its peer.
            for connection in (ours, self._client, *(w.connection for w in self._workers)):
                connection.close()
            isolation.limit([("CORE", 0, 0)])
            most = self._verifier.memory_limit
            if most:
                isolation.limit([("AS", most, most)])
            while True:
                for message in _judge(self._verifier, *theirs.recv()):
                    # CPU time of this process and its children
                    theirs.send((message, sum(os.times()[:4])))
        finally:
            os._exit(1)  # the code of the server must never continue in a worker


def _judge(
    verifier: Verifier, reference: ReferenceAnswer, completion: str | None
) -> Iterator[bool | Verdict]:
    """Yield whether the reference answer can be read, then the verdict.

    Should judging never end, the server knows from the first which of the two texts did it.

    Raises:
        MemoryError: the completion or the machine may be at fault, so this process ends, and the
            server tries the job again.
    """
    try:
        reads = verifier.reads(reference)
    except MemoryError:
        raise  # what is left of this process may be too little for the next answer
    except Exception:  # noqa: BLE001 (libraries raise anything on bad data)
        reads = False
    yield reads
    try:
        if completion is not None:
            yield verifier.judge(reference, completion)
        elif not reads:
            yield UNREADABLE
        elif reason := verifier.refusal(reference):
            yield Verdict(Outcome.UNSCORABLE, reason=reason)
        else:
            yield verdict(True, None)
    except MemoryError:
        raise
    except Exception as error:  # noqa: BLE001 (libraries raise anything on text of a model)
        failure = f"the verifier failed ({f'{type(error).__name__}: {error}'[:200]})"
        if isinstance(error, (OSError, AdvsweepError)):
            yield Verdict(Outcome.UNSCORABLE, reason=failure)
        else:
            yield Verdict(Outcome.WRONG, reason=failure) if reads else UNREADABLE


def main(descriptor: int) -> None:
    client = Connection(descriptor)
    try:
        plain, workers, deadline = client.recv()
        verifier = VERIFIERS.build(plain)
        verifier.prepare()
        server = VerifierServer(verifier, workers, deadline, client)
        while True:
            client.send(server.serve(client.recv()))
    except (EOFError, OSError):
        os._exit(0)  # the client closed the connection; the workers end with this process


if __name__ == "__main__":
    main(int(sys.argv[1]))
