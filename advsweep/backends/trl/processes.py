"""A training in several processes: what starts them, and what each one runs.

torchrun starts one process per GPU; accelerate does so if a configuration file of its own is
given. Each process, `python -m advsweep.backends.trl.processes JOB`, holds a connection to the one
that started it and exits when it breaks. The first opens a second connection and calls the
reporter through it.
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
import threading
import time
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from multiprocessing.connection import Connection, wait
from pathlib import Path
from typing import TYPE_CHECKING, Any, NoReturn, cast

import torch

from advsweep.backends.build import build_run
from advsweep.errors import TrainingError
from advsweep.tasks.base import Completions

if TYPE_CHECKING:
    from advsweep.backends.base import CountedProblem, Reporter, Run
    from advsweep.backends.trl.backend import TrlBackend
    from advsweep.tasks.base import Problem, Sampler

_POLL_SECONDS = 1.0
_GRACE_SECONDS = 10.0


def train(
    run: Run,
    processes: int,
    directory: Path,
    reporter: Reporter,
    *,
    accelerate: str | None,
    threads: int,
) -> None:
    """Train in several processes; see `Backend.train`.

    Args:
        accelerate: configuration file of accelerate; None: start processes with torchrun.
        threads: CPU threads of each process.

    Raises:
        TrainingError: the training failed, or a process was killed.
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
            with _started(_command(accelerate, processes, job), threads) as launcher:
                calls, lives = _accept(listener, launcher, processes)
                with contextlib.ExitStack() as stack:
                    for connection in (calls, *lives):
                        stack.callback(connection.close)
                    _Server(calls, lives, reporter).serve()
                    with contextlib.suppress(subprocess.TimeoutExpired):
                        launcher.wait(_GRACE_SECONDS)


def _command(accelerate: str | None, processes: int, job: Path) -> list[str]:
    if accelerate is None:
        launcher = ["torch.distributed.run", "--standalone", f"--nproc-per-node={processes}"]
    else:
        file = str(Path(accelerate).expanduser())
        launcher = ["accelerate.commands.launch", "--config_file", file]
        launcher += ["--num_machines", "1", "--num_processes", str(processes)]
    program = ["-m", "advsweep.backends.trl.processes", str(job)]
    return [sys.executable, "-P", "-m", *launcher, *program]


@contextmanager
def _started(command: Sequence[str], threads: int) -> Iterator[subprocess.Popen[bytes]]:
    """Run the launcher, and terminate it at the end if it is still alive."""
    # The launcher does not pass `-P` on to the processes that it starts.
    environment = os.environ | {"OMP_NUM_THREADS": str(threads), "PYTHONSAFEPATH": "1"}
    # In a session of its own: at Ctrl-C this process requests a checkpoint, and the others
    # must live to write it.
    launcher = subprocess.Popen(command, env=environment, start_new_session=True)
    try:
        yield launcher
    finally:
        # The processes exit because their connections are closed, and then the launcher does.
        try:
            launcher.wait(_GRACE_SECONDS)
        except subprocess.TimeoutExpired:
            launcher.terminate()
            launcher.wait()


def _accept(
    listener: socket.socket, launcher: subprocess.Popen[bytes], processes: int
) -> tuple[Connection, list[Connection]]:
    """Accept the connection for calls and one per process."""
    calls: list[Connection] = []
    lives: list[Connection] = []
    while not calls or len(lives) < processes:
        if launcher.poll() is not None and not lives:
            raise TrainingError(
                f"the {processes} processes of the training could not be started: the launcher "
                f"ended with code {launcher.returncode}; see its output in the run's log"
            )
        try:
            accepted, _ = listener.accept()
        except TimeoutError:
            _raise_failure(lives)
            continue
        accepted.setblocking(True)
        connection = Connection(accepted.detach())
        (calls if connection.recv() == "calls" else lives).append(connection)
    return calls[0], lives


def _raise_failure(lives: list[Connection]) -> None:
    """Raise the error that a process sent, or an error if a process is gone.

    Remove processes that sent None, which means that they are done.
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
            "a process of the training was killed, perhaps because memory ran out; see the "
            "launcher's output in the run's log"
        )


class _Server:
    """Calls the reporter for the training processes until they are done."""

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
        """Send a question to the first process; return its answer, and report its progress."""
        self._send(message)
        while True:
            name, content = self._receive()
            if name != "progress":
                return name, content
            self._reporter.progress(*content)

    def _evaluate(self, step: int) -> None:
        # A request to stop may interrupt an evaluation anywhere. A thread of its own sends the
        # questions, so that an interrupt never leaves an answer unread in the connection.
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
        """Return the next message of the first process; raise the error of any process."""
        while True:
            ready = wait([self._calls, *self._lives])
            if self._calls in ready:
                try:
                    return self._calls.recv()
                except (EOFError, OSError):
                    self._fail()
            _raise_failure(self._lives)

    def _fail(self) -> NoReturn:
        """Wait a moment for the error of the process that failed first, and raise it."""
        deadline = time.monotonic() + _GRACE_SECONDS
        while self._lives and time.monotonic() < deadline:
            wait(self._lives, timeout=_POLL_SECONDS)
            _raise_failure(self._lives)
        raise TrainingError("the first process of the training exited before the training was done")


class _RemoteSampler:
    """Samples from the weights in the training processes."""

    def __init__(self, server: _Server, thread: ThreadPoolExecutor) -> None:
        self._server = server
        self._thread = thread

    def sample(
        self, problems: Sequence[Problem], n: int, *, temperature: float, seed: int
    ) -> Completions:
        """Draw n completions per problem; the same seed gives the same completions."""
        question = ("sample", (list(problems), n, temperature, seed))
        name, completions = self._thread.submit(self._server.ask, question).result()
        assert name == "completions"
        assert isinstance(completions, Completions)
        return completions


def sendable(error: BaseException) -> BaseException:
    """Return the error if it can be pickled, else a RuntimeError with its message."""
    try:
        copied = pickle.loads(pickle.dumps(error))
    except Exception:  # noqa: BLE001 - pickling may fail in any way
        return RuntimeError(f"{type(error).__name__}: {error}")
    assert isinstance(copied, BaseException)
    return copied


PARENT_GONE = 75
"""Exit code of a process whose parent has exited."""


def main(path: str) -> None:
    """Take part in a training until it ends."""
    job = json.loads(Path(path).read_text(encoding="utf-8"))
    rank, world = int(os.environ.get("RANK", "0")), int(os.environ.get("WORLD_SIZE", "1"))
    life = _connect(job["socket"], "life")
    threading.Thread(target=_end_with_parent, args=(life,), daemon=True).start()
    calls = _connect(job["socket"], "calls") if rank == 0 else None
    try:
        if world != job["processes"]:
            raise TrainingError(
                f"backend.processes: expected {job['processes']} processes, got {world} from the "
                f"launcher"
            )
        # The parent, which imports this module too, does without TRL and its seconds of imports.
        from advsweep.backends.trl import training

        run = build_run(job["config"])
        backend = cast("TrlBackend", run.backend)
        torch.set_num_threads(backend.threads)
        layout = backend.layout_of(run, job["processes"])
        reporter = RemoteReporter(calls) if calls else None
        training.train(run, backend, layout, Path(job["directory"]), reporter)
    except BaseException as error:
        life.send(sendable(error))
        raise
    life.send(None)
    if calls:
        calls.send(("done", ()))
    torch.distributed.destroy_process_group()


def _connect(address: str, purpose: str) -> Connection:
    connected = socket.socket(socket.AF_UNIX)
    connected.connect(address)
    connection = Connection(connected.detach())
    connection.send(purpose)
    return connection


def _end_with_parent(life: Connection) -> None:
    """Exit this process when the other side closes the connection; it never sends anything."""
    try:
        life.recv()
    except (EOFError, OSError):
        os._exit(PARENT_GONE)


class RemoteReporter:
    """Forwards reports to the reporter of the parent process; see `Reporter`."""

    def __init__(self, calls: Connection) -> None:
        self._calls = calls
        self._sampling = False

    def metrics(self, step: int, values: Mapping[str, float]) -> None:
        self._call("metrics", step, dict(values))

    def evaluate(self, step: int, sampler: Sampler) -> None:
        self._calls.send(("evaluate", (step,)))
        while True:
            name, content = self._calls.recv()
            if name == "answer":
                return
            problems, n, temperature, seed = content
            self._sampling = True
            completions = sampler.sample(problems, n, temperature=temperature, seed=seed)
            self._sampling = False
            self._calls.send(("completions", completions))

    def counted(self, step: int, task: str, problems: Sequence[CountedProblem]) -> None:
        self._call("counted", step, task, list(problems))

    def checkpoint(self, step: int, path: Path) -> None:
        self._call("checkpoint", step, path)

    def pruned(self, path: Path) -> None:
        self._call("pruned", path)

    def resumed(self, step: int) -> None:
        self._call("resumed", step)

    def stop_requested(self) -> bool:
        return bool(self._call("stop_requested"))

    def log(self, message: str) -> None:
        self._call("log", message)

    def progress(self, stage: str, done: int, total: int) -> None:
        if self._sampling:
            # The parent waits for the completions, and answers nothing else.
            self._calls.send(("progress", (stage, done, total)))
        else:
            self._call("progress", stage, done, total)

    def _call(self, name: str, *arguments: Any) -> Any:
        self._calls.send((name, arguments))
        _, answer = self._calls.recv()
        return answer


if __name__ == "__main__":
    main(sys.argv[1])
