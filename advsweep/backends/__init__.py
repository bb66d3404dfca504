"""Backends train runs; this module has the registries of backends, models and settings."""

from __future__ import annotations

from typing import TYPE_CHECKING

from advsweep.components import Component
from advsweep.registry import Registry

if TYPE_CHECKING:
    from advsweep.backends.base import Backend
    from advsweep.config.settings import EvaluationSettings, Generation, Optimizer


_SETTINGS = "advsweep.config.settings"

BACKENDS: Registry[Backend] = Registry(
    "backend",
    {
        "tiny": "advsweep.backends.tiny.backend",
        "bandit": "advsweep.backends.bandit.backend",
        "command": "advsweep.backends.command.backend",
        "trl": "advsweep.backends.trl.backend",
    },
    unavailable={
        "imported": "the run was imported from the logs of another trainer, which has its weights; "
        "reports, plots and claims read it"
    },
    group="advsweep.backends",
    base="advsweep.backends.base:Backend",
)
MODELS: Registry[Component] = Registry(
    "model",
    {
        "tiny": "advsweep.backends.models",
        "table": "advsweep.backends.models",
        "hf": "advsweep.backends.trl.config",
    },
    group="advsweep.models",
)
# Optimizers, generations and models of other packages belong to a backend that reads them: each
# backend names the optimizers that it supports.
OPTIMIZERS: Registry[Optimizer] = Registry(
    "optimizer",
    {"adamw": _SETTINGS, "sgd": _SETTINGS},
    group="advsweep.optimizers",
    base=f"{_SETTINGS}:Optimizer",
)
GENERATIONS: Registry[Generation] = Registry(
    "generation",
    {
        "sampling": _SETTINGS,
        "transformers": "advsweep.backends.trl.config",
        "vllm": "advsweep.backends.trl.config",
    },
    group="advsweep.generations",
    base=f"{_SETTINGS}:Generation",
)
# Closed: the evaluator and the store read exactly these fields; other defaults are a YAML file.
EVALUATIONS: Registry[EvaluationSettings] = Registry("evaluation", {"standard": _SETTINGS})
