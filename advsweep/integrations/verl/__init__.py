"""Estimators and objectives inside verl, registered through its entry point group `verl.plugins`.

    algorithm.adv_estimator=advsweep +algorithm.advsweep.name=asym_grpo \
        +algorithm.advsweep.delta=0.5 trainer.v1.trainer_mode=advsweep_sync \
        actor_rollout_ref.actor.policy_loss.loss_mode=advsweep \
        +actor_rollout_ref.actor.policy_loss.advsweep.name=cispo

`advantages` registers the advantage function `advsweep`, `losses` the policy loss `advsweep`, for
whose key `config` makes a place, and `trainer` the trainer modes `advsweep_sync`,
`advsweep_colocate_async` and `advsweep_separate_async`.

verl loads its plugins in every process that imports it, workers included. This module therefore
imports neither torch nor verl: it registers each part when verl itself imports the module that
the part extends.
"""

from __future__ import annotations

import importlib
import importlib.util
import logging
import sys
from collections.abc import Sequence
from importlib.abc import MetaPathFinder
from importlib.machinery import ModuleSpec
from types import ModuleType

# Modules of verl, and the modules of ours that extend each.
_EXTENSIONS = {
    "verl.workers.config": ("config",),
    "verl.trainer.ppo.core_algos": ("advantages", "losses"),
    "verl.trainer.ppo.v1": ("trainer",),
}


class _ImportHook(MetaPathFinder):
    """Imports modules of ours right after the module of verl that they extend."""

    def __init__(self, extensions: dict[str, tuple[str, ...]]) -> None:
        self._extensions = extensions

    def find_spec(
        self, fullname: str, path: Sequence[str] | None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        # Taken out first, so that the search below does not come back here.
        extensions = self._extensions.pop(fullname, None)
        if extensions is None:
            return None
        spec = importlib.util.find_spec(fullname)
        if spec is None or spec.loader is None:
            return None
        execute = spec.loader.exec_module

        def execute_and_extend(module: ModuleType) -> None:
            execute(module)
            _load(extensions)

        spec.loader.exec_module = execute_and_extend  # type: ignore[method-assign]
        return spec


def _load(extensions: Sequence[str]) -> None:
    for name in extensions:
        extension = f"{__name__}.{name}"
        try:
            importlib.import_module(extension)
        except Exception as error:  # noqa: BLE001 (verl must work for those without advsweep)
            # verl itself would say so at level DEBUG only.
            logging.getLogger(__name__).warning(
                "advsweep is not available in verl: %s raised %s: %s; expected verl 0.9.1",
                extension,
                type(error).__name__,
                error,
            )


def _register() -> None:
    """Load what extends modules that are imported already, and wait for the others."""
    awaited = {}
    for module, extensions in _EXTENSIONS.items():
        if module in sys.modules:
            _load(extensions)
        else:
            awaited[module] = extensions
    if awaited:
        sys.meta_path.insert(0, _ImportHook(awaited))


_register()
