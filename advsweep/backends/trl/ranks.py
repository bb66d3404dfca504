"""The processes that train one run together, as one of them sees them.

torch.distributed averages gradients over the processes. All else goes through pipes between the
first process, which has the lease, the reporter and the checkpoints, and each of its helpers
(`helpers`): rollouts are gathered, and what the first decides is sent to all. A pipe waits as long
as an evaluation takes, needs no port that others could connect to, and tells at once when a process
ends. Every process must make the same calls in the same order.
"""

from __future__ import annotations

import os
import pickle
import sys
from collections.abc import Callable, Sequence
from multiprocessing.connection import Connection
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

import torch
import torch.distributed as dist

from advsweep import errors

if TYPE_CHECKING:
    from advsweep.backends.trl.steps import Rows

T = TypeVar("T")


class HelperFailure:
    """The error that ended a helper, in a form that can be sent.

    Args:
        rank: number of the helper.
    """

    def __init__(self, rank: int, error: BaseException) -> None:
        self._rank = rank
        self._kind = type(error).__name__
        self._message = str(error)

    def error(self) -> errors.AdvsweepError:
        """Return an error of the same class, if it is one of advsweep's, or a `TrainingError`."""
        kind = getattr(errors, self._kind, None)
        if isinstance(kind, type) and issubclass(kind, errors.AdvsweepError):
            return kind(self._message)
        return errors.TrainingError(
            f"process {self._rank} of the run failed: {self._kind}: {self._message}"
        )


class Ranks:
    """The processes of a run; without arguments the only one.

    Args:
        connections: pipes to the others: of the first process to each helper, in their order, of
            a helper to the first.

    Attributes:
        rank: number of this process; 0 is the first.
        count: number of processes.
    """

    def __init__(
        self, rank: int = 0, count: int = 1, connections: Sequence[Connection] = ()
    ) -> None:
        self.rank = rank
        self.count = count
        self._connections = connections
        self._variables: dict[str, str | None] = {}

    @property
    def is_first(self) -> bool:
        return self.rank == 0

    # Messages

    def gather(self, value: T) -> list[T]:
        """Return the values of all processes, by rank. Tensors must be on the CPU."""
        if self.count == 1:
            return [value]
        if not self.is_first:
            self._send(value)
            gathered: list[T] = self._receive(self._connections[0])
            return gathered
        values = [value]
        for connection in self._connections:
            values.append(self._receive(connection))
        self._send(values)
        return values

    def from_first(self, make: Callable[[], T]) -> T:
        """Return what the first process makes; the others wait for it."""
        if self.is_first:
            value = make()
            self._send(value)
            return value
        received: T = self._receive(self._connections[0])
        return received

    def send_failure(self, error: BaseException) -> None:
        """Tell the first process what ended this helper."""
        self._send(HelperFailure(self.rank, error))

    def _send(self, value: Any) -> None:
        if not self._connections:
            return
        # Not `Connection.send`, whose pickler would move tensors through shared memory.
        message = pickle.dumps(value)
        for connection in self._connections:
            connection.send_bytes(message)

    def _receive(self, connection: Connection) -> Any:
        """Wait for a message.

        Raises:
            EOFError: the other process has ended.
            AdvsweepError: an error has ended it.
        """
        value = pickle.loads(connection.recv_bytes())
        if isinstance(value, HelperFailure):
            raise value.error()
        return value

    # Parts of a step

    def part_of(self, items: Sequence[T], unit: int = 1) -> list[T]:
        """Return this process's part of some items; all parts have the same length.

        Args:
            unit: how many items in a row stay together. Where the units cannot be divided equally,
                the last parts are filled with the last unit: they are behind the items when all
                parts are joined.
        """
        size = -(-len(items) // (unit * self.count)) * unit
        start = self.rank * size
        part = [*items[start : start + size]]
        while len(part) < size:
            part += items[len(items) - unit :]
        return part

    def rows_of(self, rows: Rows) -> Rows:
        """Return the rows that this process trains on."""
        size = len(rows["keep"]) // self.count
        part = slice(self.rank * size, (self.rank + 1) * size)
        return {name: values[part] for name, values in rows.items()}

    # torch.distributed

    def connect(self, scratch: Path, threads: int) -> None:
        """Let torch.distributed connect the processes, for TRL and for gradients.

        Args:
            scratch: a folder of the first process that others can neither read nor write.
            threads: threads of torch.
        """
        if self.count == 1:
            return
        # Also the sign that all processes live: torch would wait half an hour for one that does
        # not.
        store = self.gather(str(scratch / "connections"))[0]
        loopback = "lo0" if sys.platform == "darwin" else "lo"
        self._set_variables(
            # How accelerate finds out that there are several processes.
            RANK=str(self.rank),
            LOCAL_RANK=str(self.rank),
            WORLD_SIZE=str(self.count),
            LOCAL_WORLD_SIZE=str(self.count),
            # Without it accelerate sets another number of threads.
            OMP_NUM_THREADS=os.environ.get("OMP_NUM_THREADS", str(threads)),
            GLOO_SOCKET_IFNAME=os.environ.get("GLOO_SOCKET_IFNAME", loopback),
        )
        backend = "gloo"
        if torch.cuda.is_available():
            backend = "nccl"
            torch.cuda.set_device(self.rank)
        # A file, as a port would listen on all networks of the machine.
        dist.init_process_group(
            backend,
            store=dist.FileStore(store, self.count),  # type: ignore[attr-defined]
            rank=self.rank,
            world_size=self.count,
        )

    def disconnect(self) -> None:
        """Undo `connect`, so that the process can train another run."""
        if self.count == 1:
            return
        if dist.is_initialized():
            dist.destroy_process_group()
        from accelerate.state import AcceleratorState

        # It remembers how many processes there were.
        AcceleratorState._reset_state(reset_partial_state=True)
        for name, value in self._variables.items():
            if value is None:
                os.environ.pop(name, None)
            else:
                os.environ[name] = value
        for connection in self._connections:
            connection.close()

    def _set_variables(self, **values: str) -> None:
        # accelerate sets this one.
        for name in (*values, "MASTER_PORT"):
            self._variables[name] = os.environ.get(name)
        os.environ.update(values)
