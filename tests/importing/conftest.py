"""Fixtures: an empty store, and logs of two estimators with three seeds."""

from __future__ import annotations

import json
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from advsweep.logs import READERS, ImportedRun, ImportOptions
from advsweep.logs.names import NameMap
from advsweep.store import Store, open_store


@pytest.fixture
def store(empty_file: Path, tmp_path: Path) -> Iterator[Store]:
    path = tmp_path / "advsweep.db"
    shutil.copyfile(empty_file, path)
    with open_store(str(path)) as opened:
        yield opened


def write_logs(folder: Path, *, steps: int = 20, seeds: int = 3) -> Path:
    """Logs of grpo and rloo; the reward of rloo is 0.1 higher in every seed."""
    for estimator, gain in (("grpo", 0.0), ("rloo", 0.1)):
        for seed in range(seeds):
            file = folder / f"{estimator}-s{seed}" / "metrics.jsonl"
            file.parent.mkdir(parents=True, exist_ok=True)
            config = {"config": {"lr": 1e-6, "output_dir": f"/data/{estimator}/{seed}"}}
            rows = [
                {
                    "step": step,
                    "reward": step / 40 + gain + seed / 100 + (seed * step % 3) / 1000,
                    "frac_reward_zero_std": 0.25,
                    "entropy": 2 - step / 20,
                    "completions/mean_length": 100.0 + step,
                }
                for step in range(1, steps + 1)
            ]
            file.write_text("".join(json.dumps(line) + "\n" for line in [config, *rows]))
    return folder


@pytest.fixture
def logs(tmp_path: Path) -> Path:
    return write_logs(tmp_path / "logs")


def read(form: str, source: Path, **given: Any) -> list[ImportedRun]:
    """The runs of a source, with settings as `--set` gives them."""
    reader = READERS.build(form)
    options = ImportOptions(names=NameMap(reader.table), settings=given)
    return list(reader.runs(source, options))


def values(run: ImportedRun) -> dict[int, dict[str, float]]:
    """The metrics of a run by step."""
    found: dict[int, dict[str, float]] = {}
    for step, own in run.steps:
        found.setdefault(step, {}).update(own)
    return found
