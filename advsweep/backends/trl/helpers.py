"""The helper processes of a run, as its first process sees them: their start, watch and end.

A run on several GPUs is trained by a process for each. The first is the worker's; it starts the
others as fresh interpreters (`helper_main`). They have no store, no evaluations and no checkpoints.
They end with the first process, and it ends with the error of the first of them that fails.
"""

from __future__ import annotations

import json
import multiprocessing
import pickle
import signal
import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from multiprocessing.connection import Connection
from pathlib import Path
from typing import TYPE_CHECKING

import torch.distributed as dist

from advsweep.backends.trl.config import TRAINING_REMEDIES, VllmGeneration
from advsweep.backends.trl.ranks import HelperFailure, Ranks
from advsweep.errors import (
    AdvsweepError,
    ConfigError,
    NoMemoryError,
    ProcessKilledError,
    TrainingError,
)
from advsweep.failures import Failure, classify_exit, is_out_of_memory
from advsweep.machine import memory_kills, reserved_descriptors

if TYPE_CHECKING:
    from advsweep.backends.base import Run

_HELPER = "advsweep.backends.trl.helper_main"

# Time in which an error of the first process may turn out to be the end of a helper.
_CAUSE_SECONDS = 5.0
# Time for helpers to end by themselves after the last step.
_END_SECONDS = 30.0
# Time after which a first process that still waits for a helper that has ended is interrupted.
_ABORT_SECONDS = 10.0


def check_processes(run: Run) -> None:
    """Refuse what several processes cannot train together.

    Raises:
        ConfigError: the generation is for one process.
    """
    if isinstance(run.generation, VllmGeneration):
        raise ConfigError(
            "generation: expected transformers with several GPUs or backend.processes, as vLLM's "
            "engine is one for all of a run, got vllm"
        )


@contextmanager
def helped(run: Run, count: int, directory: Path) -> Iterator[Ranks]:
    """Start the helpers of a run, and end them with the block.

    Args:
        count: number of processes, this one included.

    Raises:
        AdvsweepError: the error that ended a helper.
        ProcessKilledError: a signal ended one.
    """
    if count == 1:
        yield Ranks()
        return
    helpers = Helpers(run, count, directory)
    ranks = Ranks(0, count, helpers.connections)
    try:
        yield ranks
        helpers.wait()
    except Exception as error:
        cause = helpers.cause_of(error)
        if cause is None:
            raise
        raise cause from error
    finally:
        helpers.kill()
        ranks.disconnect()


class Helper:
    """A helper process, and the pipe to it."""

    def __init__(self, rank: int, run: Run, count: int, directory: Path) -> None:
        self._rank = rank
        self._kills = memory_kills()
        self.connection, theirs = multiprocessing.Pipe()
        with theirs:
            self.process = subprocess.Popen(
                # `-P`: no module of the working folder is imported in place of an installed one.
                [sys.executable, "-P", "-m", _HELPER, str(theirs.fileno())],
                stdin=subprocess.DEVNULL,
                # Standard output may be for the data of a command.
                stdout=sys.__stderr__.fileno() if sys.__stderr__ else subprocess.DEVNULL,
                # Its GPUs stay reserved until it has ended, should it outlive this process.
                pass_fds=(theirs.fileno(), *reserved_descriptors()),
            )
        order = {
            "rank": rank,
            "count": count,
            # As the worker gets it from the store: plug-ins are loaded by the same rules.
            "config": run.plain(),
            "definition": run.definition,
            "learning_rate_scale": run.learning_rate_scale,
            "directory": str(directory),
        }
        with suppress(OSError):  # it has ended: the first message from it tells
            self.connection.send_bytes(json.dumps(order).encode())

    def failure(self) -> AdvsweepError:
        """Return why it has ended."""
        failure = self._last_failure()
        if failure is not None:
            return failure.error()
        code = self.process.wait()
        kind = classify_exit(code, killed_by_kernel=memory_kills() > self._kills)
        if kind is Failure.OOM:
            return NoMemoryError(
                f"process {self._rank} of the run was killed by the kernel, out of memory; "
                f"{TRAINING_REMEDIES}"
            )
        if code < 0:
            return ProcessKilledError(
                f"process {self._rank} of the run was ended by {signal.Signals(-code).name}; a "
                "retry resumes from the last checkpoint"
            )
        return TrainingError(
            f"process {self._rank} of the run ended with exit code {code} and gave no reason; the "
            "log of the run may have one"
        )

    def _last_failure(self) -> HelperFailure | None:
        """Read what waits in the pipe of a helper that has ended."""
        with suppress(EOFError, OSError):
            while self.connection.poll():
                message = pickle.loads(self.connection.recv_bytes())
                if isinstance(message, HelperFailure):
                    return message
        return None


class Helpers:
    """The helpers of a run.

    Attributes:
        connections: the pipes to them, by rank.
    """

    def __init__(self, run: Run, count: int, directory: Path) -> None:
        self._helpers = [Helper(rank, run, count, directory) for rank in range(1, count)]
        self.connections: list[Connection] = [helper.connection for helper in self._helpers]
        self._lock = threading.Lock()
        self._first_failed: Helper | None = None
        self._has_failed = threading.Event()
        self._is_over = threading.Event()
        for helper in self._helpers:
            watch = threading.Thread(target=self._watch, args=(helper,), daemon=True)
            watch.start()

    def _watch(self, helper: Helper) -> None:
        """Wait for the end of a helper; if it fails, see that no process waits for it."""
        if helper.process.wait() == 0 or self._is_over.is_set():
            return
        with self._lock:
            if self._first_failed is not None:
                return
            self._first_failed = helper
        self._has_failed.set()
        for other in self._helpers:
            other.process.kill()
        # Pipes and gloo tell when a process ends; NCCL waits on for it.
        if not self._is_over.wait(_ABORT_SECONDS) and dist.is_initialized():
            dist.distributed_c10d._abort_process_group()

    def cause_of(self, error: Exception) -> AdvsweepError | None:
        """Return the error of the helper whose end has caused an error here; None if none has."""
        if isinstance(error, AdvsweepError) or is_out_of_memory(error):
            return None
        # What pipes and torch raise when another process has ended.
        is_suspect = isinstance(error, (RuntimeError, EOFError, OSError))
        if not self._has_failed.wait(_CAUSE_SECONDS if is_suspect else 0):
            return None
        assert self._first_failed is not None
        return self._first_failed.failure()

    def wait(self) -> None:
        """Let the helpers end after the last step; the run is complete even if one fails then."""
        for helper in self._helpers:
            with suppress(subprocess.TimeoutExpired):
                helper.process.wait(_END_SECONDS)

    def kill(self) -> None:
        """End the helpers that still live."""
        self._is_over.set()
        for helper in self._helpers:
            helper.process.kill()
        for helper in self._helpers:
            helper.process.wait()
