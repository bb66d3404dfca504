"""What every test shares: the same examples each time, one thread, nothing of the user's own."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping
from pathlib import Path

import pytest
from hypothesis import settings

settings.register_profile("advsweep", max_examples=60, deadline=None, derandomize=True)
settings.load_profile("advsweep")

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


Install = Callable[..., Path]


@pytest.fixture
def install(tmp_path: Path) -> Install:
    """`install(package, entry_points, **modules)`: a folder for PYTHONPATH with that package.

    It holds what pip leaves behind: the modules and a `.dist-info` with the entry points,
    which map a group to names and what they stand for.
    """

    def installed(
        package: str, entry_points: Mapping[str, Mapping[str, str]], **modules: str
    ) -> Path:
        folder = tmp_path / "site"
        metadata = folder / f"{package.replace('-', '_')}-1.0.dist-info"
        metadata.mkdir(parents=True)
        (metadata / "METADATA").write_text(
            f"Metadata-Version: 2.1\nName: {package}\nVersion: 1.0\n"
        )
        lines = [
            line
            for group, points in entry_points.items()
            for line in (f"[{group}]", *(f"{name} = {value}" for name, value in points.items()))
        ]
        (metadata / "entry_points.txt").write_text("\n".join(lines) + "\n")
        for name, source in modules.items():
            (folder / f"{name}.py").write_text(source, encoding="utf-8")
        return folder

    return installed
