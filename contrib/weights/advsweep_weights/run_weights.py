"""The weights of a run after a step, and their files."""

from __future__ import annotations

import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from advsweep.backends.base import Run
    from advsweep.store import RunRecord


@dataclass(frozen=True)
class RunWeights:
    """The weights of a run after `step` training steps; after 0 they are its base model's."""

    record: RunRecord
    run: Run
    step: int

    def base(self) -> RunWeights:
        """Return the weights before the training."""
        return replace(self, step=0)

    @contextmanager
    def exported(self) -> Iterator[Path]:
        """Export the weights to a folder that goes afterwards."""
        with tempfile.TemporaryDirectory(prefix="advsweep-weights-") as folder:
            self.run.backend.export(self.run, self.record.directory, self.step, Path(folder))
            yield Path(folder)
