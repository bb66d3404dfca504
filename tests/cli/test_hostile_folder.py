"""Commands run no code of the working folder, whatever its files are called."""

from __future__ import annotations

import subprocess
import sys
import time
from pathlib import Path

import pytest

from advsweep.store import Status, open_store
from advsweep.tasks.verifiers import VERIFIERS
from advsweep.tasks.verifiers.pool import VerifierPool
from tests.cli.conftest import commands
from tests.conftest import INSTALLED

pytestmark = [pytest.mark.security, pytest.mark.slow]

MODULES = (
    *("advsweep", "hydra", "json", "matplotlib", "numpy", "pathlib", "ray", "resource", "shlex"),
    *("sitecustomize", "socket", "sqlalchemy", "subprocess", "submitit", "torch", "transformers"),
    *("typer", "usercustomize", "wandb", "x"),
)
CODE = """
import os
open(os.path.join(os.path.dirname(__file__), "ran-" + __name__), "w").close()
"""
GROUPS = ("estimators", "backends", "tasks", "verifiers", "executors", "tracking")

# The script that an installation makes: the folder of the script begins `sys.path`.
PROGRAM = """
import shlex, sys
from advsweep.cli import main

for command in sys.argv[1:]:
    sys.argv = ["advsweep", *shlex.split(command)]
    try:
        main()
    except SystemExit as exit_:
        print(command, exit_.code)
"""

READING = (
    *("ls", "ls --format=json", "status", "show 1", "logs 1", "report", "claims demo"),
    *("report --format=html", "plot --figure curves --output curves.svg", "list estimators"),
    *("describe grpo", "describe grpo --rewards 1,0,0,1", "list methods", "list tasks"),
    *(
        "sweep --dry-run backend=fake",
        "merge advsweep.db --store merged.db",
        "db upgrade",
        "db version",
    ),
    *("samples 1", "list experiments", "describe bandit"),
    *("describe grpo --output masses.svg", "replay 1 -e grpo"),
    *("keys", "schema", "doctor", "audit", "audition 1", "help report", "version"),
    "judge grpo --checks",
    "serve nonesuch",  # another sweep would be served until Ctrl-C
)
WRITING = (
    *("retry 1", "stop 1", "worker demo --wait=0", "eval 1", "select", "export 1 out"),
    *("note demo seen", "tag demo seen", "rename demo demo2"),
    *("export 1 --to tensorboard", "rm 1 --yes", "import jsonl log.jsonl", "init mine"),
)
TRAINING = ("run", "sweep")
"""Commands that tests of their own start."""

SMALL = "backend=fake steps=4 evaluation.n=4 evaluation.k=[1] estimator=grpo,fade"


@pytest.fixture
def hostile(tmp_path, monkeypatch):
    """The working folder, with modules and an entry point that leave a file when they run."""
    folder = tmp_path / "hostile"
    metadata = folder / "x-1.0.dist-info"
    metadata.mkdir(parents=True)
    (metadata / "METADATA").write_text("Metadata-Version: 2.1\nName: x\nVersion: 1.0\n")
    points = "".join(f"[advsweep.{group}]\nx = x:X\n" for group in GROUPS)
    (metadata / "entry_points.txt").write_text(points)
    for module in MODULES:
        (folder / f"{module}.py").write_text(CODE)
    plugins = folder / "hydra_plugins"
    plugins.mkdir()
    (plugins / "evil.py").write_text(CODE)
    monkeypatch.chdir(folder)
    monkeypatch.setenv("PYTHONPATH", str(INSTALLED))
    return folder


@pytest.fixture
def advsweep(hostile, tmp_path):
    """Runs commands in the hostile folder, one after another, in one process."""
    script = tmp_path / "bin" / "script.py"
    script.parent.mkdir()
    script.write_text(PROGRAM)

    def called(*commands: str) -> str:
        done = subprocess.run(
            [sys.executable, str(script), *commands],
            cwd=hostile,
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            check=False,
        )
        assert done.returncode == 0, done.stderr
        return done.stdout + done.stderr

    return called


def ran(folder: Path) -> list[str]:
    return sorted(path.name for path in folder.rglob("ran-*"))


def test_the_modules_run_where_the_folder_is_searched(hostile):
    """The tests below look for something that happens."""
    subprocess.run([sys.executable, "-m", "shlex"], check=True, cwd=hostile)
    assert "ran-__main__" in ran(hostile)


def test_the_module_imports_nothing_of_the_folder(hostile):
    # Python itself imports modules of the standard library by these names, before us.
    for name in ("json", "pathlib", "resource", "shlex", "socket", "subprocess"):
        (hostile / f"{name}.py").unlink(missing_ok=True)
    (hostile / "advsweep.py").unlink()
    command = [sys.executable, "-m", "advsweep", "ls"]
    done = subprocess.run(command, cwd=hostile, capture_output=True, text=True, check=False)
    assert "there is no store" in done.stderr
    assert ran(hostile) == []


def test_every_command_is_covered():
    started = [*READING, *WRITING, *TRAINING]
    absent = [name for name, _ in commands() if not any(c.startswith(name) for c in started)]
    assert absent == [], "add a new command to READING or WRITING"


def test_commands_and_forked_workers(advsweep, hostile):
    advsweep(f"sweep --jobs=2 tracking=tensorboard {SMALL}")
    printed = advsweep(*READING)
    assert "grpo" in printed
    assert "Traceback" not in advsweep(*WRITING)
    advsweep(f"run --jobs=1 {SMALL} seed=2")
    assert ran(hostile) == []


def test_settings_of_matplotlib_are_not_read(advsweep, hostile):
    (hostile / "matplotlibrc").write_text("no.such.setting: evil\n")
    advsweep(f"sweep executor=debug {SMALL}")
    for command in (
        "plot --figure curves --output curves.svg",
        "plot --figure curves --output curves.pdf",
        "describe grpo --output masses.svg",
    ):
        printed = advsweep(command)
        assert ".svg" in printed or ".pdf" in printed
        assert "no.such.setting" not in printed


def test_workers_that_are_spawned_submitted_and_started_again(advsweep, hostile):
    advsweep(
        f"sweep {SMALL}",
        f"sweep executor=slurm executor.cluster=local {SMALL} seed=1",
    )
    with open_store("advsweep.db", create=False) as store:
        deadline = time.monotonic() + 120
        while len(store.runs.select(status=Status.DONE)) < 4:
            assert time.monotonic() < deadline, store.runs.select()
            time.sleep(0.05)
    assert ran(hostile) == []


def test_actors_of_ray(advsweep, hostile):
    advsweep(f"sweep executor=ray {SMALL}")
    with open_store("advsweep.db", create=False) as store:
        assert len(store.runs.select(status=Status.DONE)) == 2
    assert ran(hostile) == []


def test_processes_of_verifiers(hostile):
    pool = VerifierPool(VERIFIERS.build("numeric"), workers=1, deadline=30.0)
    pool.judge([("1", "1")])
    pool.close()
    assert ran(hostile) == []
