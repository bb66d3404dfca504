"""Readers of the logs of other trainers; nothing here knows the store.

    log = open_metric_log("tensorboard", Path("runs/1"))
    for step in read_all(log): ...

Heavy readers import their packages inside, so that importing this package is quick.
"""

from __future__ import annotations

import importlib
from pathlib import Path
from typing import Any

from advsweep.errors import ConfigError, UnknownNameError, nearest
from advsweep.logs.base import LoggedStep, MetricLog, iter_all, read_all

__all__ = ["KINDS", "LoggedStep", "MetricLog", "iter_all", "open_metric_log", "read_all"]

KINDS = {
    "jsonl": ("json_lines", "JsonLines", {}),
    "csv": ("csv_file", "CsvFile", {}),
    "pattern": ("line_pattern", "LinePattern", {}),
    "tensorboard": ("tensorboard", "TensorBoardEvents", {}),
    "verl": ("json_lines", "JsonLines", {"data_key": "data"}),
    "trainer_state": ("trainer_state", "TrainerState", {}),
    "wandb": ("wandb_offline", "WandbOffline", {}),
}
"""Module, class and fixed options of each kind of log."""


def open_metric_log(kind: str, path: Path, **options: Any) -> MetricLog:
    """Opens a log that may not exist yet.

    Args:
        kind: one of `KINDS`.
        options: options of the kind's class, such as `step_keys`; `step_key` for a single one.

    Raises:
        UnknownNameError: there is no such kind.
        ConfigError: the kind has no such option, or its value does not fit.
    """
    if kind not in KINDS:
        raise UnknownNameError(f"log: no kind of log is called '{kind}'; {nearest(kind, KINDS)}")
    module, name, fixed = KINDS[kind]
    if "step_key" in options:
        options = {**options, "step_keys": [options["step_key"]]}
        del options["step_key"]
    opened = getattr(importlib.import_module(f"advsweep.logs.{module}"), name)
    try:
        log: MetricLog = opened(path, **{**fixed, **options})
    except TypeError as error:
        raise ConfigError(f"log: options of '{kind}' do not fit: {error}") from error
    return log
