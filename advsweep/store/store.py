"""The store, and how to open one."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from datetime import datetime
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Self

from advsweep.store.analyses import Analyses
from advsweep.store.base import Shared, StorePart, utc_now
from advsweep.store.checkpoints import Checkpoints
from advsweep.store.connections import DEFAULT_FILE, Engines, Location, connect, locate
from advsweep.store.evaluations import Evaluations
from advsweep.store.leases import Leases
from advsweep.store.metrics import Metrics
from advsweep.store.removal import Removal
from advsweep.store.schema import HEAD, prepare
from advsweep.store.tables import Base
from advsweep.store.trials import Trials


def open_store(
    url: str | None = None,
    *,
    create: bool = True,
    upgrade: bool = False,
    clock: Callable[[], datetime] | None = None,
    patience: float | None = None,
    wait: bool = False,
) -> Store:
    """Opens a store, and makes it if it is not there.

    Args:
        url: a path of a SQLite file or a SQLAlchemy URL; by default `$ADVSWEEP_STORE`, else
            `advsweep.db` in the working folder.
        create: make a store that is not there; commands that only read must not.
        upgrade: bring a store of an older schema up to date.
        clock: the time, in UTC; by default this machine's, or the database server's.
        patience: for how many seconds a call is repeated while the store does not answer, is
            locked or, on a server, has no room; `engines.BUSY_SECONDS` when None.
        wait: opening it is repeated as well; else a server that is away is an error at once.

    Raises:
        StoreError: it is no store, cannot be read or written, is not there, or its schema is
            newer, or older, than this advsweep's.
    """
    engines = connect(locate(url), patience)

    def opened() -> list[str]:
        return prepare(engines, create=create, upgrade=upgrade)

    upgraded = engines.patience.call(opened) if wait else opened()
    return Store(engines, clock or engines.clock or utc_now, upgraded)


class Store(StorePart):
    """The database of runs, metrics and evaluations; made by `open_store`.

    What was written when a method returns outlives the process. Any number of processes may
    have the same store open, and threads may share an object.

    Attributes:
        url: opens the same store from another process; it may hold a password.
        name: what to call the store in a message: its path as it was given, or its URL
            without a password.
        file: the SQLite file; None for a store on a server.
        upgraded: what `open_store(upgrade=True)` changed, one line per migration.
        runs_directory: the folder of the runs' own folders: `$ADVSWEEP_RUNS`, else
            `advsweep-runs` beside `advsweep.db`; for a database `advsweep` on a server it is
            `advsweep-runs` in the working folder.

    Raises:
        StoreError: from any method, when the database cannot do it (the disk is full, the
            file is locked for too long); nothing of that call is kept then.
    """

    def __init__(
        self, engines: Engines, clock: Callable[[], datetime], upgraded: list[str]
    ) -> None:
        location = engines.location
        shared = Shared(engines=engines, now=clock, runs_directory=_runs_directory(location))
        super().__init__(shared)
        self.runs = Removal(shared)
        self.metrics = Metrics(shared)
        self.leases = Leases(shared)
        self.evaluations = Evaluations(shared)
        self.analyses = Analyses(shared)
        self.checkpoints = Checkpoints(shared)
        self.trials = Trials(shared)
        self.url = location.url.render_as_string(hide_password=False)
        self.name = location.name
        self.file = location.file
        self.upgraded = upgraded

    @property
    def runs_directory(self) -> Path:
        """The folder of the runs' own folders."""
        return self._shared.runs_directory

    @runs_directory.setter
    def runs_directory(self, folder: Path) -> None:
        self._shared.runs_directory = folder

    def schema_version(self) -> str:
        """The version of the schema, which is always the newest that this advsweep knows."""
        return HEAD

    @contextmanager
    def scratch(self) -> Iterator[Store]:
        """An empty store in a file that is thrown away, on the engines of this SQLite store.

        A statement that was made there once need not be compiled here any more, nor in a
        process that is forked from this one. This store must not be used meanwhile.
        """
        with TemporaryDirectory() as folder, self._engines.elsewhere(Path(folder) / DEFAULT_FILE):
            Base.metadata.create_all(self._engines.writer)
            yield Store(self._engines, self._now, [])

    def trying_once(self) -> AbstractContextManager[None]:
        """A stretch in which this thread's calls are not repeated while the store is away."""
        return self._patience.suspended()

    def stop_waiting(self) -> None:
        """Has calls fail that are repeated; for a handler of signals."""
        self._patience.stop()

    @property
    def is_away(self) -> bool:
        """Whether the last call of some thread failed, and none has succeeded since."""
        return self._patience.is_away

    def close(self) -> None:
        """Closes every connection."""
        self._engines.dispose()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


def _runs_directory(location: Location) -> Path:
    if chosen := os.environ.get("ADVSWEEP_RUNS"):
        return Path(chosen).absolute()
    # Two stores in one folder keep their runs apart.
    if location.file is None:
        return Path(f"{location.url.database}-runs").absolute()
    return location.file.with_name(f"{location.file.stem}-runs")
