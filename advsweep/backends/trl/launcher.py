"""A training in several processes, as seen by the one that started them.

torchrun, or accelerate where a configuration file of its own is named, starts one process per
GPU. Each opens a connection to this process for as long as it lives, and ends itself when that
breaks. The first of them opens another, by which it calls the reporter.
"""

from __future__ import annotations

import contextlib
import json
import os
import pickle
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from multiprocessing.connection import Connection, wait
from pathlib import Path
from typing import TYPE_CHECKING, Any, NoReturn

from advsweep.errors import TrainingError
from advsweep.tasks.base import Completions

if TYPE_CHECKING:
    from advsweep.backends.base import Reporter, Run
    from advsweep.backends.trl.backend import TrlBackend
    from advsweep.tasks.base import Problem

_POLL_SECONDS = 1.0
_LAST_WORDS_SECONDS = 10.0


def train(
    run: Run, backend: TrlBackend, processes: int, directory: Path, reporter: Reporter
) -> None:
    """Trains in several processes; see `Backend.train`.

    Raises:
        TrainingError: a process ended without a word, or the training failed.
    """
    with tempfile.TemporaryDirectory(prefix="advsweep-") as folder:
        address = str(Path(folder) / "socket")
        job = Path(folder) / "job.json"
        settings = {"socket": address, "processes": processes, "directory": str(directory)}
        job.write_text(json.dumps({**settings, "config": run.plain()}), encoding="utf-8")
        with socket.socket(socket.AF_UNIX) as listener:
            listener.bind(address)
            listener.listen(processes + 1)
            listener.settimeout(_POLL_SECONDS)
            with _started(_command(backend, processes, job), backend.threads) as launcher:
                calls, lives = _accept(listener, launcher, processes)
                with contextlib.ExitStack() as stack:
                    for connection in (calls, *lives):
                        stack.callback(connection.close)
                    _Server(calls, lives, reporter).serve()
                    with contextlib.suppress(subprocess.TimeoutExpired):
                        launcher.wait(_LAST_WORDS_SECONDS)


def _command(backend: TrlBackend, processes: int, job: Path) -> list[str]:
    if backend.accelerate is None:
        launcher = ["torch.distributed.run", "--standalone", f"--nproc-per-node={processes}"]
    else:
        file = str(Path(backend.accelerate).expanduser())
        launcher = ["accelerate.commands.launch", "--config_file", file]
        launcher += ["--num_machines", "1", "--num_processes", str(processes)]
    program = ["-m", "advsweep.backends.trl.launched", str(job)]
    return [sys.executable, "-P", "-m", *launcher, *program]


@contextmanager
def _started(command: Sequence[str], threads: int) -> Iterator[subprocess.Popen[bytes]]:
    """The launcher; whatever is left of it in the end is ended."""
    # The launcher does not pass `-P` on to the processes that it starts.
    environment = os.environ | {"OMP_NUM_THREADS": str(threads), "PYTHONSAFEPATH": "1"}
    # In a session of its own: Ctrl-C is for this process, which has a checkpoint written.
    launcher = subprocess.Popen(command, env=environment, start_new_session=True)
    try:
        yield launcher
    finally:
        # Its processes have lost their connections, which ends them, and so the launcher.
        try:
            launcher.wait(_LAST_WORDS_SECONDS)
        except subprocess.TimeoutExpired:
            launcher.terminate()
            launcher.wait()


def _accept(
    listener: socket.socket, launcher: subprocess.Popen[bytes], processes: int
) -> tuple[Connection, list[Connection]]:
    """The connection for calls, and those by which processes live."""
    calls: list[Connection] = []
    lives: list[Connection] = []
    while not calls or len(lives) < processes:
        if launcher.poll() is not None and not lives:
            raise TrainingError(
                f"the {processes} processes of the training could not be started: the launcher "
                f"ended with code {launcher.returncode}; the run's log has its words"
            )
        try:
            accepted, _ = listener.accept()
        except TimeoutError:
            _raise_last_words(lives)
            continue
        accepted.setblocking(True)
        connection = Connection(accepted.detach())
        (calls if connection.recv() == "calls" else lives).append(connection)
    return calls[0], lives


def _raise_last_words(lives: list[Connection]) -> None:
    """Raises what a process failed with, if one has said so or is gone.

    Those that have said that they are through are taken from the list.
    """
    gone = False
    for life in wait(lives, timeout=0):
        assert isinstance(life, Connection)
        try:
            word = life.recv()
        except (EOFError, OSError):
            gone = True
            continue
        if word is not None:
            raise word
        lives.remove(life)
    if gone:
        raise TrainingError(
            "a process of the training ended without a word: it was killed, for want of memory "
            "perhaps; the run's log has what its launcher says"
        )


class _Server:
    """Does what the training calls for, until it is done."""

    def __init__(self, calls: Connection, lives: Sequence[Connection], reporter: Reporter) -> None:
        self._calls = calls
        self._lives = list(lives)
        self._reporter = reporter

    def serve(self) -> None:
        while True:
            name, arguments = self._receive()
            if name == "done":
                return
            called = self._evaluate if name == "evaluate" else getattr(self._reporter, name)
            self._send(("answer", called(*arguments)))

    def ask(self, message: tuple[str, Any]) -> Any:
        """Sends a question to the first process; returns its answer."""
        self._send(message)
        return self._receive()

    def _evaluate(self, step: int) -> None:
        # A request to stop may break an evaluation off anywhere. What is asked of the first
        # process meanwhile is asked by another thread, which comes to an end of it.
        thread = ThreadPoolExecutor(max_workers=1)
        try:
            self._reporter.evaluate(step, _RemoteSampler(self, thread))
        except BaseException:
            thread.shutdown(wait=False)
            raise
        thread.shutdown()

    def _send(self, message: tuple[str, Any]) -> None:
        try:
            self._calls.send(message)
        except OSError:
            self._fail()

    def _receive(self) -> Any:
        """The next message of the first process; raises what any of them failed with."""
        while True:
            ready = wait([self._calls, *self._lives])
            if self._calls in ready:
                try:
                    return self._calls.recv()
                except (EOFError, OSError):
                    self._fail()
            _raise_last_words(self._lives)

    def _fail(self) -> NoReturn:
        """Waits a moment for the words of the process that failed first."""
        deadline = time.monotonic() + _LAST_WORDS_SECONDS
        while self._lives and time.monotonic() < deadline:
            wait(self._lives, timeout=_POLL_SECONDS)
            _raise_last_words(self._lives)
        raise TrainingError("the first process of the training ended before it was done")


class _RemoteSampler:
    """The weights of the processes that train; they answer together."""

    def __init__(self, server: _Server, thread: ThreadPoolExecutor) -> None:
        self._server = server
        self._thread = thread

    def sample(
        self, problems: Sequence[Problem], n: int, *, temperature: float, seed: int
    ) -> Completions:
        """Draws n completions per problem; the same seed gives the same completions."""
        question = ("sample", (list(problems), n, temperature, seed))
        name, completions = self._thread.submit(self._server.ask, question).result()
        assert name == "completions"
        assert isinstance(completions, Completions)
        return completions


def sendable(error: BaseException) -> BaseException:
    """An error as another process can be sent it."""
    try:
        copied = pickle.loads(pickle.dumps(error))
    except Exception:  # noqa: BLE001 - an error of anybody's may refuse in any way
        return RuntimeError(f"{type(error).__name__}: {error}")
    assert isinstance(copied, BaseException)
    return copied
