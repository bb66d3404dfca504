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
from dataclasses import dataclass, field
from multiprocessing.connection import Connection, Pipe, wait
from typing import Any

from advsweep.tasks.verifiers.base import Gold, Outcome, Verdict, Verifier
from advsweep.tasks.verifiers.registry import VERIFIERS

Job = tuple[Gold, str | None]
"""A completion to judge; None: whether the gold answer can be read."""

Answer = Verdict | None
"""Of a job; None where the job was about a gold answer that can be read."""

_CHUNK = 8
"""Jobs given to a worker at a time: fewer messages, and little to do again for another."""

_SET_PARENT_DEATH_SIGNAL = 1  # PR_SET_PDEATHSIG of prctl(2)


@dataclass
class Worker:
    """A process that judges one job after the other.

    Attributes:
        jobs: the numbers of the jobs it has, the present one first.
        since: when it began with the present one.
    """

    pid: int
    connection: Connection
    jobs: deque[int] = field(default_factory=deque)
    since: float = 0.0


class Server:
    """Distributes jobs over workers and watches their deadlines."""

    def __init__(
        self, verifier: Verifier, workers: int, deadline: float, client: Connection
    ) -> None:
        self._verifier = verifier
        self._deadline = deadline
        self._client = client
        self._workers: list[Worker] = []
        for _ in range(workers):
            self._workers.append(self._fork())

    def serve(self, jobs: Sequence[Job]) -> list[Answer]:
        """The answers to some jobs, in their order.

        Raises:
            EOFError: the client is gone.
        """
        answers: list[Answer] = [None] * len(jobs)
        waiting = deque(range(len(jobs)))
        died: set[int] = set()
        while waiting or any(worker.jobs for worker in self._workers):
            for worker in self._workers:
                if waiting and not worker.jobs:
                    chunk = [waiting.popleft() for _ in range(min(_CHUNK, len(waiting)))]
                    worker.jobs, worker.since = deque(chunk), time.monotonic()
                    with suppress(OSError):  # it died while it was idle; its end is seen below
                        worker.connection.send([jobs[number] for number in chunk])
            busy = [worker for worker in self._workers if worker.jobs]
            left = min(worker.since for worker in busy) + self._deadline - time.monotonic()
            ready = wait([self._client, *(worker.connection for worker in busy)], max(left, 0))
            if self._client in ready:
                raise EOFError  # it says nothing before it has its answers
            for place, worker in enumerate(self._workers):
                if not worker.jobs:
                    continue
                if worker.connection in ready:
                    try:
                        answers[worker.jobs[0]] = worker.connection.recv()
                    except (EOFError, OSError):
                        self._workers[place] = self._replace(worker)
                        self._after_death(worker, waiting, died, answers)
                        continue
                    worker.jobs.popleft()
                    worker.since = time.monotonic()
                elif time.monotonic() >= worker.since + self._deadline:
                    self._workers[place] = self._replace(worker)
                    answers[worker.jobs.popleft()] = Verdict(
                        Outcome.UNSCORABLE, reason=f"it took more than {self._deadline:g} s"
                    )
                    waiting.extendleft(reversed(worker.jobs))
        return answers

    def _after_death(
        self, worker: Worker, waiting: deque[int], died: set[int], answers: list[Answer]
    ) -> None:
        """Has a job whose worker was killed tried once more: it may not be to blame."""
        number = worker.jobs[0]
        if number in died:
            answers[number] = Verdict(Outcome.UNSCORABLE, reason="it killed the verifier")
            worker.jobs.popleft()
        died.add(number)
        waiting.extendleft(reversed(worker.jobs))

    def _replace(self, worker: Worker) -> Worker:
        os.kill(worker.pid, signal.SIGKILL)
        os.waitpid(worker.pid, 0)
        worker.connection.close()
        return self._fork()

    def _fork(self) -> Worker:
        ours, theirs = Pipe()
        parent = os.getpid()
        pid = os.fork()
        if pid:
            theirs.close()
            return Worker(pid, ours)
        status = 1
        try:
            # Nobody would notice the server's end, or a worker's, while copies are open here.
            for connection in (ours, self._client, *(w.connection for w in self._workers)):
                connection.close()
            _end_with(parent)
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
        for gold, completion in jobs:
            connection.send(_judge(verifier, gold, completion))


def _judge(verifier: Verifier, gold: Gold, completion: str | None) -> Answer:
    try:
        if completion is None:
            readable = verifier.reads(gold)
            return None if readable else Verdict(Outcome.UNSCORABLE, reason="it cannot be read")
        return verifier.judge(gold, completion)
    except Exception as error:  # noqa: BLE001 (whatever libraries make of what models write)
        text = f"{type(error).__name__}: {error}"[:200]
        return Verdict(Outcome.UNSCORABLE, reason=f"the verifier failed ({text})")


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
        server = Server(verifier, settings["workers"], settings["deadline"], client)
        while True:
            client.send(server.serve(client.recv()))
    except (EOFError, OSError):
        os._exit(0)  # the client is gone, and the workers go with this process


if __name__ == "__main__":
    main(int(sys.argv[1]))
