"""The command line as a user has it: a process of its own in an empty folder."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

import pytest
import typer

from advsweep.cli import main

Advsweep = Callable[..., "subprocess.CompletedProcess[str]"]

# Small enough that a run takes milliseconds once its process has started.
FAKE = ["backend=fake", "steps=12", "evaluation.n=16", "evaluation.k=[1,8]", "evaluation.every=6"]


def _advsweep(
    folder: Path, *arguments: str, **environment: str
) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-c", "from advsweep.cli import main; main()", *arguments],
        cwd=folder,
        env={**os.environ, **environment},
        capture_output=True,
        text=True,
        timeout=240,
        check=False,
    )


def commands(group: typer.Typer, prefix: str = "") -> Iterator[tuple[str, Callable[..., None]]]:
    """Every command of a group with what it calls; a group that does something alone is one too."""
    for command in group.registered_commands:
        assert command.name is not None
        assert command.callback is not None
        yield f"{prefix}{command.name}", command.callback
    for inner in group.registered_groups:
        alone = inner.typer_instance.registered_callback
        if alone is not None and alone.callback is not None and alone.invoke_without_command:
            yield f"{prefix}{inner.name}", alone.callback
        yield from commands(inner.typer_instance, f"{prefix}{inner.name} ")


@pytest.fixture
def advsweep(tmp_path: Path) -> Advsweep:
    """Runs `advsweep ARGUMENTS` in an empty folder and returns the finished process."""
    return lambda *arguments, **environment: _advsweep(tmp_path, *arguments, **environment)


@pytest.fixture(scope="session")
def fake_folder(tmp_path_factory: pytest.TempPathFactory, cache_directory: Path) -> Path:
    """A folder with a finished sweep of two estimators and three seeds on the fake backend."""
    folder = tmp_path_factory.mktemp("fake-sweep")
    done = _advsweep(
        folder,
        "sweep",
        "--name=two",
        "--jobs=2",
        "estimator=grpo,fade",
        "seed=0,1,2",
        *FAKE,
        ADVSWEEP_CACHE=str(cache_directory),
    )
    assert done.returncode == 0, done.stderr
    return folder


@pytest.fixture
def finished(fake_folder: Path) -> Advsweep:
    """Runs `advsweep ARGUMENTS` in the folder of the finished sweep, which it must not change."""
    return lambda *arguments, **environment: _advsweep(fake_folder, *arguments, **environment)


@pytest.fixture
def in_process(
    fake_folder: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> Callable[..., tuple[int, str, str]]:
    """`in_process(*ARGUMENTS)` in the folder of the finished sweep: exit code, stdout, stderr.

    In this process, for commands that only read.
    """
    monkeypatch.chdir(fake_folder)

    def called(*arguments: str) -> tuple[int, str, str]:
        monkeypatch.setattr("sys.argv", ["advsweep", *arguments])
        code = 0
        try:
            main()
        except SystemExit as exit_:
            code = int(exit_.code or 0)
        printed = capsys.readouterr()
        return code, printed.out, printed.err

    return called


@pytest.fixture
def refused(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> Callable[..., None]:
    """`refused(words, *ARGUMENTS)`: one line on stderr that has the words, and exit code 2."""

    def called(words: Sequence[str], *arguments: str) -> None:
        # In this process, as importing torch once per mistake would take most of the time.
        monkeypatch.chdir(tmp_path)
        monkeypatch.setattr("sys.argv", ["advsweep", *arguments])
        with pytest.raises(SystemExit) as exit_:
            main()
        assert exit_.value.code == 2
        printed = capsys.readouterr()
        assert printed.out == ""
        assert printed.err.startswith("advsweep: ")
        assert printed.err.count("\n") == 1
        for word in words:
            assert word in printed.err
        assert list(tmp_path.iterdir()) == []

    return called
