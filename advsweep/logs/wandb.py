"""Runs of Weights & Biases, read from its server."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar

from advsweep.errors import ConfigError
from advsweep.local_files import outside_working_folder
from advsweep.logs.base import ImportedRun, ImportOptions, Reader, whole_step
from advsweep.logs.names import LoggedStep
from advsweep.packages import import_extra

_ADDRESS = re.compile(r"[\w.-]+/[\w.-]+(/[\w.-]+)?")
_OWN_STEP = "_step"
_SECONDS = 60  # to wait for the server


@dataclass(kw_only=True)
class Wandb(Reader):
    """Histories and configs of the runs of ENTITY/PROJECT, or of ENTITY/PROJECT/RUN."""

    name: ClassVar[str] = "wandb"
    table: ClassVar[str] = "wandb"

    def __post_init__(self) -> None:
        super().__post_init__()
        self._step_keys: list[str] = []
        self._last: int | None = None

    def runs(self, source: Path | str, options: ImportOptions) -> Iterator[ImportedRun]:
        if Path(source).exists() or not _ADDRESS.fullmatch(str(source)):
            raise ConfigError(
                f"{source}: expected ENTITY/PROJECT; `wandb sync FOLDER` sends an offline run there"
            )
        yield from self.read_project(None, str(source), options)

    def read_project(self, api: Any, address: str, options: ImportOptions) -> Iterator[ImportedRun]:
        """Yield the runs of a project, oldest first.

        Args:
            api: in place of `wandb.Api()`, which reads the user's settings, among them the server.
            address: ENTITY/PROJECT, or ENTITY/PROJECT/RUN.

        Raises:
            ConfigError: the server does not answer, or has no such project.
        """
        try:
            if api is None:
                # wandb reads `wandb/settings` of the working folder when it is imported, which may
                # name the server that gets the user's key.
                with outside_working_folder():
                    wandb = import_extra("wandb", "wandb", "reading runs of wandb")
                    api = wandb.Api(timeout=_SECONDS)
            if address.count("/") == 2:
                runs = [api.run(address)]
            else:
                runs = list(api.runs(address, order="+created_at"))
            for run in runs:
                log = self.open(Path())
                log._step_keys = [key for key in options.names.steps if key != _OWN_STEP]
                rows = (log._step(dict(row)) for row in run.scan_history())
                steps = [options.names.rename_step(step) for step in rows if step is not None]
                yield ImportedRun(
                    source=run.name or run.id,
                    key=f"{run.entity}/{run.project}/{run.id}",
                    config={k: value for k, value in run.config.items() if not k.startswith("_")},
                    steps=steps,
                    left_out=log.left_out,
                )
        except ConfigError:
            raise
        except Exception as error:  # wandb raises classes of its own and of its network library.
            raise ConfigError(
                f"wandb: {address} cannot be read (`wandb login` gives access): {error}"
            ) from error

    def _step(self, row: Mapping[str, Any]) -> LoggedStep | None:
        """Return the step of a row; None, and count it, if it has none."""
        # wandb's own count rises with each call of log(), several of which may be of one step. A
        # row without a named step belongs to the last one, and before the first to that count.
        keys = self._step_keys
        named = (step for key in keys if (step := whole_step(row.get(key))) is not None)
        self._last = next(named, self._last)
        step = whole_step(row.get(_OWN_STEP)) if self._last is None else self._last
        if step is None:
            self.left_out["rows without a step"] += 1
            return None
        numbers = [
            (name, value)
            for name, value in row.items()
            # Its own keys begin with _; media and tables are mappings.
            if not name.startswith("_") and name not in keys and value is not None
        ]
        return LoggedStep(step, self._numbers(numbers))
