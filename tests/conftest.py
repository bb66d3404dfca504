"""What every test shares: one thread, no store, cache or settings of the user's own."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

os.environ.update({"OMP_NUM_THREADS": "1", "MKL_NUM_THREADS": "1", "COLUMNS": "160"})


@pytest.fixture(scope="session")
def cache_directory(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A base-model cache of the test session; xdist's workers share it."""
    base = tmp_path_factory.getbasetemp()
    shared = base.parent if "PYTEST_XDIST_WORKER" in os.environ else base
    directory = shared / "advsweep-cache"
    directory.mkdir(exist_ok=True)
    return directory


@pytest.fixture(autouse=True)
def _own_environment(cache_directory: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("ADVSWEEP_CACHE", str(cache_directory))
    for name in ("ADVSWEEP_STORE", "ADVSWEEP_RUNS"):
        monkeypatch.delenv(name, raising=False)
