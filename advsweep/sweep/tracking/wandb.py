"""Weights & Biases (https://wandb.ai)."""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar, Literal, Self

from advsweep.components import option
from advsweep.local_files import outside_working_folder
from advsweep.store import Status
from advsweep.sweep.tracking import base

if TYPE_CHECKING:
    from advsweep.store import RunRecord

_TAG_CHARACTERS = 64  # the most that the server takes

# Exit codes that wandb shows as `finished` (0), `killed` (255) or `failed` (any other).
_EXIT_CODES = {Status.DONE: 0, Status.PRUNED: 0, Status.INTERRUPTED: 255}


@dataclass(kw_only=True)
class WandbTracking(base.Tracking):
    """Runs of a project, the seeds of a configuration as a group, with the store's metric names.

    A run's id follows from its identity and attempt, so that a resumed run, or one that is sent
    again from another machine, stays one run there. Rows are numbered by training steps, and
    wandb ignores rows that it has: a step that is sent twice appears once.
    """

    name: ClassVar[str] = "wandb"
    package: ClassVar[str | None] = "wandb"

    mode: Literal["online", "offline"] | None = option(
        None, help="to its server, or to files for `wandb sync`; null: $WANDB_MODE, else online"
    )
    project: str | None = option(None, help="null: $WANDB_PROJECT, else advsweep")
    entity: str | None = option(None, help="a user or team; null: $WANDB_ENTITY, else your own")
    tags: tuple[str, ...] = option((), help="tags of every run, beside the names of its sweeps")
    directory: str | None = option(
        None, help="where wandb makes its folder `wandb`; null: $WANDB_DIR, else the working folder"
    )

    def in_folder(self, folder: Path) -> Self:
        return replace(self, mode="offline", directory=str(folder.absolute()))

    def open(self, record: RunRecord) -> base.Track:
        # wandb reads settings, such as its server, from files of the working folder.
        with outside_working_folder():
            import wandb

            wandb.setup()
        # The user's $WANDB_MODE may be any mode of wandb.
        mode: Any = self.mode or os.environ.get("WANDB_MODE", "online")
        run = wandb.init(
            id=base.run_key(record),
            resume="allow",
            reinit="create_new",
            mode=mode,
            project=self.project or os.environ.get("WANDB_PROJECT", base.PROJECT),
            entity=self.entity or os.environ.get("WANDB_ENTITY"),
            dir=os.path.abspath(self.directory or os.environ.get("WANDB_DIR", ".")),
            name=record.directory.name,
            group=base.group_of(record),
            job_type=record.backend,
            tags=sorted({tag[:_TAG_CHARACTERS] for tag in base.run_tags(record, self.tags)}),
            config=record.config | base.identifiers(record),
            settings=wandb.Settings(
                silent=True,
                console="off",
                # The process that sends is not the one that trains.
                disable_git=True,
                disable_code=True,
                x_disable_meta=True,
                x_disable_stats=True,
                x_disable_machine_info=True,
            ),
        )
        return WandbTrack(run)


class WandbTrack(base.Track):
    """One run in wandb, sent by its service process."""

    def __init__(self, run: Any) -> None:
        self._run = run
        # The number of the first row that wandb accepts. `run.step` of a resumed run is 0.
        self._row = run.starting_step
        self.last_step = self._row - 1
        run.define_metric("step")
        run.define_metric("*", step_metric="step")

    def log(self, rows: base.Rows) -> None:
        for step, values in rows:
            # Late values, of an evaluation that a stop interrupted, go into the next row.
            self._row = max(step, self._row)
            self._run.log({**values, "step": step}, step=self._row)

    def close(self, record: RunRecord, summaries: Mapping[str, float]) -> None:
        error = {"error": record.error} if record.error else {}
        self._run.summary.update({"status": record.status.value, **summaries, **error})
        self._run.finish(exit_code=_EXIT_CODES.get(record.status, 1))
