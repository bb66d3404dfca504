"""The packages of `examples/plugins`, installed once for all tests by pip."""

from __future__ import annotations

import importlib.util
import os
import shutil
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from filelock import FileLock
from typer.testing import CliRunner, Result

from advsweep.cli.app import app
from advsweep.cli.catalogue import plugin_registries

EXAMPLES = Path(__file__).parents[2] / "examples" / "plugins"


@pytest.fixture(scope="session")
def site(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder into which one call of pip has installed all examples."""
    base = tmp_path_factory.getbasetemp()
    shared = base.parent if "PYTEST_XDIST_WORKER" in os.environ else base
    folder = shared / "plugin-examples"
    with FileLock(f"{folder}.lock"):
        if not folder.exists():
            sources = shared / "plugin-sources"
            shutil.copytree(EXAMPLES, sources)
            _install(sorted(str(path) for path in sources.iterdir() if path.is_dir()), folder)
    return folder


def _install(packages: list[str], folder: Path) -> None:
    options = ["--quiet", "--disable-pip-version-check", "--no-deps", "--target", str(folder)]
    if importlib.util.find_spec("hatchling"):
        options += ["--no-build-isolation", "--no-index"]
    command = [sys.executable, "-m", "pip", "install", *options, *packages]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr


@pytest.fixture
def plugged(site: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """This process and its children have the examples installed, for one test."""
    monkeypatch.syspath_prepend(site)
    path = [str(site), *filter(None, [os.environ.get("PYTHONPATH")])]
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join(path))
    _forget()
    yield
    _forget()
    for module in [
        name for name in sys.modules if name.startswith("advsweep_") and name != "advsweep_fake"
    ]:
        del sys.modules[module]


def _forget() -> None:
    """Registries look for other packages once; they look again."""
    for registry in plugin_registries().values():
        vars(registry).pop("_plugins", None)
        loaded = registry._loaded
        for name in [n for n, cls in loaded.items() if cls.__module__.startswith("advsweep_")]:
            del loaded[name]


Command = Callable[..., Result]


@pytest.fixture
def advsweep(plugged: None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Command:
    """`advsweep ARGUMENTS` in this process, in the test's folder."""
    monkeypatch.chdir(tmp_path)
    return lambda *arguments: CliRunner().invoke(app, [str(each) for each in arguments])
