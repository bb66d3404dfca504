"""Whether this machine has what the runs of a store need, asked before one of them is claimed."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

from advsweep.backends.base import Backend
from advsweep.backends.build import NODES
from advsweep.errors import ConfigError
from advsweep.tasks.base import Task

if TYPE_CHECKING:
    from advsweep.store import RunRecord


class MachineCheck:
    """Checks the parts of runs, each once: many runs of a sweep have the same."""

    def __init__(self) -> None:
        self._fitting: set[str] = set()

    def check(self, record: RunRecord) -> None:
        """Refuse a run that this machine cannot train.

        Raises:
            ConfigError: the message names the run, and what is missing: a component, a program,
                or the user's consent to start one.
        """
        for key, registry in NODES.items():
            node = record.config.get(key)
            text = json.dumps([key, node], sort_keys=True)
            if node is None or text in self._fitting:
                continue
            try:
                part = registry.build(node, where=key)
                if isinstance(part, (Backend, Task)):
                    part.check_consent()
                if isinstance(part, Backend):
                    part.check_machine()
            except ConfigError as error:
                raise ConfigError(
                    f"run {record.id}: {error}; it stays open (`advsweep worker SWEEP` trains the "
                    "runs of one sweep)"
                ) from error
            self._fitting.add(text)
