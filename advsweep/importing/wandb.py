"""Imports runs of Weights & Biases: offline run folders, or a project online."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar

from advsweep.components import option
from advsweep.errors import ConfigError
from advsweep.importing.base import ImportedRun, Importer, ImportOptions
from advsweep.local_files import outside_working_folder
from advsweep.logs.base import LoggedStep, iter_all
from advsweep.logs.wandb_offline import WandbOffline, WandbRows
from advsweep.packages import extra_command

_ADDRESS = re.compile(r"[\w.-]+/[\w.-]+(/[\w.-]+)?")


@dataclass(kw_only=True)
class WandbImporter(Importer):
    """Histories and configs: a file `run-ID.wandb`, folders with such files, or ENTITY/PROJECT."""

    name: ClassVar[str] = "wandb"
    table: ClassVar[str] = "wandb"

    timeout: int = option(60, gt=0, help="seconds to wait for the server", identity=False)

    def read(self, source: Path | str, options: ImportOptions) -> Iterator[ImportedRun]:
        root = Path(source)
        if root.exists():
            yield from self._read_files(root, options)
        elif _ADDRESS.fullmatch(str(source)):
            yield from self._read_online(str(source), options)
        else:
            raise ConfigError(
                f"{source}: expected a .wandb file, a folder with some, or ENTITY/PROJECT, got "
                "nothing"
            )

    def _read_files(self, root: Path, options: ImportOptions) -> Iterator[ImportedRun]:
        # `latest-run` is a link to one of the others.
        found = root.rglob("*.wandb") if root.is_dir() else [root]
        files = sorted({file.resolve() for file in found})
        if not files:
            raise ConfigError(f"{root}: expected files *.wandb of offline runs, got none")
        for file in files:
            log = WandbOffline(file, step_keys=options.names.steps)
            steps = [options.names.rename_step(step) for step in iter_all(log)]
            yield ImportedRun(
                source=log.display_name or file.stem,
                key=log.run_id or None,
                config=dict(log.config),
                steps=steps,
                left_out=log.left_out,
            )

    def _read_online(self, address: str, options: ImportOptions) -> Iterator[ImportedRun]:
        try:
            with outside_working_folder():
                import wandb

                # Reads the settings, among them the server.
                api = wandb.Api(timeout=self.timeout)
        except ImportError as error:
            raise ConfigError(
                "wandb: expected the package wandb, got: not installed; "
                f"install it with `{extra_command('wandb')}`"
            ) from error
        except Exception as error:  # wandb raises classes of its own and of its network library.
            raise ConfigError(f"wandb: expected a key (`wandb login`), got: {error}") from error
        yield from read_project(api, address, options)


def read_project(api: Any, address: str, options: ImportOptions) -> Iterator[ImportedRun]:
    """Yields the runs of a project, oldest first.

    Args:
        api: `wandb.Api()`.
        address: ENTITY/PROJECT, or ENTITY/PROJECT/RUN.

    Raises:
        ConfigError: the server does not answer, or has no such project.
    """
    try:
        if address.count("/") == 2:
            runs = [api.run(address)]
        else:
            runs = list(api.runs(address, order="+created_at"))
        for run in runs:
            yield _online_run(run, options)
    except Exception as error:  # wandb raises classes of its own and of its network library.
        raise ConfigError(f"wandb: {address} cannot be read: {error}") from error


def _online_run(run: Any, options: ImportOptions) -> ImportedRun:
    rows = WandbRows(options.names.steps, Counter())
    steps: list[LoggedStep] = []
    for row in run.scan_history():
        if (step := rows.step(dict(row))) is not None:
            steps.append(options.names.rename_step(step))
    config = {key: value for key, value in run.config.items() if not key.startswith("_")}
    return ImportedRun(
        source=run.name or run.id,
        key=f"{run.entity}/{run.project}/{run.id}",
        config=config,
        steps=steps,
        left_out=rows.left_out,
    )
