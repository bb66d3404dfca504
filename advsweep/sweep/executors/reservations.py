"""Shares of GPUs and cores, reserved across the processes of this machine.

Two sweeps that count only what they gave out themselves would put two runs on one GPU: of other
processes nvidia-smi tells the memory that is in use, which a training takes up to a minute to fill.
Here each GPU has a file of locks (`lock_files`), and a run that gets a share of it locks that share
of the file's bytes. The file is handed to the run's process and closed here, so that the GPU is
reserved as long as that process lives and no longer, whatever becomes of the sweep.

Cores are reserved by the process that starts the runs, while they last: to have one too few for a
moment harms nobody.
"""

from __future__ import annotations

import itertools
import re
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from advsweep.errors import counted
from advsweep.sweep.executors.lock_files import (
    Holder,
    LockFile,
    has_locks,
    lock_files,
    locked_parts,
)

# Bytes of a GPU's file that stand for the whole GPU.
_WHOLE = 1000

_CORES = "cores"
# In the file of cores the first bytes are cores, by their numbers. In every file each command that
# wants a part locks one of the bytes from here, and one of the bytes behind them while it waits.
_COMMANDS = 8192
_MOST_COMMANDS = 1024
_WAITING = _COMMANDS + _MOST_COMMANDS

_ROUNDING = 1e-9
_NO_NAME = re.compile(r"[^\w.-]")


@dataclass(frozen=True)
class Reserved:
    """A part of the machine that somebody has.

    Attributes:
        resource: the UUID or the name of a GPU, or `cores`.
        amount: the share of a GPU, or a number of cores.
    """

    resource: str
    amount: float
    holder: Holder

    @property
    def is_cores(self) -> bool:
        return self.resource == _CORES

    @property
    def what(self) -> str:
        """The part in words."""
        if self.is_cores:
            return counted(int(self.amount), "core")
        return self.resource if self.amount == 1 else f"{self.amount:.3g} of {self.resource}"

    def plain(self) -> dict[str, Any]:
        """Return it in JSON types."""
        holder = self.holder
        return {
            "resource": self.resource,
            "amount": self.amount,
            "run": holder.run,
            "sweep": holder.sweep or None,
            "pid": holder.pid,
            "user": holder.user,
            "since": datetime.fromtimestamp(holder.since, UTC).isoformat(timespec="seconds"),
        }


class Reservation:
    """Shares of GPUs that a run has; `descriptors` keep them and are handed to its process."""

    def __init__(self) -> None:
        # Files, with the first byte that is locked in each.
        self._locks: list[tuple[LockFile, int]] = []

    def add(self, device: str, share: float) -> bool:
        """Reserve a share of a GPU as well; return whether there was so much left.

        Args:
            device: its UUID, or another name that means the same GPU in every process.
            share: above 0 and at most 1.

        Raises:
            ConfigError: the file of locks cannot be used.
        """
        if not has_locks():
            return True
        file = LockFile(_file_name(device))
        size = max(1, int(_WHOLE * share))
        start = 0
        while start + size <= _WHOLE:
            if file.lock(start, size):
                self._locks.append((file, start))
                return True
            # None: another process has just freed it.
            start = file.end_of_lock(start, size) or start
        file.close()
        return False

    @property
    def descriptors(self) -> tuple[int, ...]:
        """The open files."""
        return tuple(file.descriptor for file, _ in self._locks)

    def describe(self, holder: Holder) -> None:
        """Say whose they are."""
        for file, start in self._locks:
            file.write_record(start, holder)

    def release(self) -> None:
        """Close this process's files; the run's own process may still have them."""
        for file, _ in self._locks:
            file.close()
        self._locks = []


def _file_name(resource: str) -> str:
    # A name of nvidia-smi or of the environment is no path.
    return _NO_NAME.sub("_", resource)


class Turns:
    """Lets commands take turns at a part of this machine that several want.

    While another command waits, none takes more than its part: runs that end make room for the
    other's then.
    """

    def __init__(self, file: LockFile) -> None:
        self._file = file
        self._waiting: int | None = None
        _lock_any(file, _COMMANDS)

    def have_come(self, held: float, wanted: float, total: float) -> bool:
        """Return whether this command may take more.

        Args:
            held: what it has.
            wanted: what it would take.
            total: what there is for all commands.
        """
        if not self._file.is_locked(_WAITING, _MOST_COMMANDS):
            return True
        bytes_of_commands = range(_COMMANDS, _COMMANDS + _MOST_COMMANDS)
        others = sum(self._file.is_locked(byte) for byte in bytes_of_commands)
        return held + wanted <= total / (1 + others) + _ROUNDING

    def wait(self) -> None:
        """Tell others that this command waits."""
        if self._waiting is None:
            self._waiting = _lock_any(self._file, _WAITING)

    def stop_waiting(self) -> None:
        """Tell others that it has what it needs."""
        if self._waiting is not None:
            self._file.unlock(self._waiting)
        self._waiting = None

    def close(self) -> None:
        """Leave the turns to others."""
        self._file.close()


def _lock_any(file: LockFile, first: int) -> int | None:
    """Lock one of the bytes for commands; return which, None if all are taken."""
    for byte in range(first, first + _MOST_COMMANDS):
        if file.lock(byte):
            return byte
    return None


class GpuTurns:
    """The turns of this command at each of its GPUs."""

    def __init__(self) -> None:
        self._turns: dict[str, Turns] = {}

    def of(self, device: str) -> Turns | None:
        """Return the turns at a GPU; None where nothing is reserved.

        Raises:
            ConfigError: the file of locks cannot be used.
        """
        if not has_locks():
            return None
        if device not in self._turns:
            self._turns[device] = Turns(LockFile(_file_name(device)))
        return self._turns[device]

    def close(self) -> None:
        """Leave the turns to others."""
        for turns in self._turns.values():
            turns.close()
        self._turns = {}


@dataclass(eq=False)
class RunCores:
    """The cores of a run.

    Attributes:
        numbers: those that are reserved for it.
        lacking: how many more it uses, as it started without them.
        holder: whose they are; None before that is known.
    """

    numbers: list[int]
    lacking: int = 0
    holder: Holder | None = None


class CorePool:
    """The cores that the runs of this process have, reserved across processes.

    A command that leaves the number of runs to us takes free cores alone, in turns with others.
    Its first run starts in any case; cores that it lacks then are taken before another starts.
    """

    def __init__(self) -> None:
        self._file: LockFile | None = None
        self._turns: Turns | None = None
        self._runs: list[RunCores] = []

    def take(self, cores: Sequence[int], number: int, *, only_free: bool) -> RunCores | None:
        """Take a number of some cores for a run; it has those that could be locked.

        Args:
            only_free: return None if fewer are free, or it is another command's turn.

        Raises:
            ConfigError: the file of locks cannot be used.
        """
        if not has_locks():
            return RunCores([])
        file, turns = self._open()
        if only_free and self._runs:
            self._fill_up(file, turns, cores)
            is_turn = turns.have_come(self._held, number, len(cores))
            if any(run.lacking for run in self._runs) or not is_turn:
                turns.wait()
                return None
        taken = self._lock(file, cores, number)
        if only_free and self._runs and len(taken) < number:
            self._unlock(file, taken)
            turns.wait()
            return None
        turns.stop_waiting()
        run = RunCores(taken, lacking=number - len(taken) if only_free else 0)
        self._runs.append(run)
        return run

    @property
    def _held(self) -> int:
        return sum(len(run.numbers) for run in self._runs)

    def _fill_up(self, file: LockFile, turns: Turns, cores: Sequence[int]) -> None:
        """Take the cores that runs lack."""
        for run in self._runs:
            if run.lacking and turns.have_come(self._held, run.lacking, len(cores)):
                more = self._lock(file, cores, run.lacking)
                run.numbers += more
                run.lacking -= len(more)
                self._write_records(run)

    def _lock(self, file: LockFile, cores: Sequence[int], number: int) -> list[int]:
        """Lock a number of cores, or as many as are free; return them."""
        held = {core for run in self._runs for core in run.numbers}
        free = (core for core in cores if core not in held and core < _COMMANDS)
        return list(itertools.islice(filter(file.lock, free), number))

    def describe(self, run: RunCores, holder: Holder) -> None:
        """Say whose the cores of a run are."""
        run.holder = holder
        self._write_records(run)

    def _write_records(self, run: RunCores) -> None:
        if self._file is not None and run.holder is not None:
            for core in run.numbers:
                self._file.write_record(core, run.holder)

    def give_back(self, run: RunCores) -> None:
        """Take the cores of a run back."""
        if self._file is not None and run in self._runs:
            self._unlock(self._file, run.numbers)
            self._runs.remove(run)

    def close(self) -> None:
        """Give all cores back."""
        if self._file is not None:
            self._file.close()
        self._file = None
        self._turns = None
        self._runs = []

    def _open(self) -> tuple[LockFile, Turns]:
        if self._file is None or self._turns is None:
            self._file = LockFile(_CORES)
            self._turns = Turns(self._file)
        return self._file, self._turns

    @staticmethod
    def _unlock(file: LockFile, cores: Sequence[int]) -> None:
        for core in cores:
            file.unlock(core)


def reserved_gpu(device: str) -> list[Reserved]:
    """Return who has shares of a GPU."""
    name = _file_name(device)
    # Of all files, that of the cores takes the longest to read.
    return [part for path in lock_files() if path.stem == name for part in _reserved_shares(path)]


def all_reserved() -> list[Reserved]:
    """Return who has what of this machine, GPUs first."""
    if not has_locks():
        return []
    parts: list[Reserved] = []
    cores: list[Reserved] = []
    for path in lock_files():
        if path.stem == _CORES:
            cores = _reserved_cores(path)
        else:
            parts += _reserved_shares(path)
    return [*parts, *cores]


def _reserved_shares(path: Path) -> list[Reserved]:
    """Return who has shares of the GPU of a file."""
    parts = locked_parts(path, _WHOLE, single=False)
    return [Reserved(path.stem, length / _WHOLE, holder) for _, length, holder in parts]


def _reserved_cores(path: Path) -> list[Reserved]:
    """Return how many cores each holder has."""
    parts = locked_parts(path, _COMMANDS, single=True)
    numbers = Counter(holder for _, _, holder in parts)
    return [Reserved(_CORES, number, holder) for holder, number in numbers.items()]
