"""One of several processes of a training: `python -m advsweep.backends.trl.training_process JOB`.

`launcher` starts it through torchrun or accelerate, and serves its reports.
"""

from __future__ import annotations

import json
import os
import socket
import sys
import threading
from collections.abc import Mapping, Sequence
from multiprocessing.connection import Connection
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch

from advsweep.backends.build import build_run
from advsweep.backends.trl.launcher import sendable
from advsweep.errors import TrainingError

if TYPE_CHECKING:
    from advsweep.backends.base import CountedProblem
    from advsweep.tasks.base import Sampler

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
        _train(job, RemoteReporter(calls) if calls else None)
    except BaseException as error:
        life.send(sendable(error))
        raise
    life.send(None)
    if calls:
        calls.send(("done", ()))
    torch.distributed.destroy_process_group()


def _train(job: Mapping[str, Any], reporter: RemoteReporter | None) -> None:
    from advsweep.backends.trl import training
    from advsweep.backends.trl.backend import TrlBackend

    run = build_run(job["config"])
    assert isinstance(run.backend, TrlBackend)
    torch.set_num_threads(run.backend.threads)
    options = run.backend.training_options(run, job["processes"])
    training.train(run, options, Path(job["directory"]), reporter)


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
