"""Fixtures that run commands: forked processes, or the test's process for reading commands."""

from __future__ import annotations

import contextlib
import inspect
import logging
import os
import signal
import subprocess
import sys
import tempfile
import time
import traceback
import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, NoReturn

import pytest
import typer

from advsweep.cli import main
from advsweep.cli.app import app
from advsweep.cli.commands import COMMANDS
from tests.cli.json_contract import check_output

Advsweep = Callable[..., "subprocess.CompletedProcess[str]"]

# Small enough that a run takes milliseconds once its process has started.
FAKE = ["backend=fake", "steps=12", "evaluation.n=16", "evaluation.k=[1,8]", "evaluation.every=6"]


def _advsweep(
    folder: Path, *arguments: str, **environment: str
) -> subprocess.CompletedProcess[str]:
    """Runs `advsweep ARGUMENTS` in a process that is forked from this one.

    A fork has everything imported: a command takes milliseconds, where a new interpreter takes
    seconds to import torch.
    """
    with tempfile.TemporaryFile() as out, tempfile.TemporaryFile() as err:
        pid = os.fork()
        if pid == 0:
            _become_advsweep(folder, arguments, environment, out.fileno(), err.fileno())
        deadline = time.monotonic() + 240
        while (ended := os.waitpid(pid, os.WNOHANG)) == (0, 0):
            if time.monotonic() > deadline:
                os.kill(pid, signal.SIGKILL)
                os.waitpid(pid, 0)
                raise subprocess.TimeoutExpired(["advsweep", *arguments], 240)
            time.sleep(0.005)
        texts = []
        for file in (out, err):
            file.seek(0)
            texts.append(file.read().decode())
    code = os.waitstatus_to_exitcode(ended[1])
    if code in (0, 1):
        check_output(arguments, texts[0])
    return subprocess.CompletedProcess(["advsweep", *arguments], code, *texts)


def _become_advsweep(
    folder: Path, arguments: Sequence[str], environment: Mapping[str, str], out: int, err: int
) -> NoReturn:
    """Turns this forked process into a command as a shell would start it."""
    code = 1
    try:
        os.chdir(folder)
        os.environ.update(environment)
        nothing = os.open(os.devnull, os.O_RDONLY)
        for target, source in enumerate((nothing, out, err)):
            os.dup2(source, target)
        sys.stdin, sys.stdout, sys.stderr = os.fdopen(0), os.fdopen(1, "w"), os.fdopen(2, "w")
        # pytest collects warnings and log records; a command prints them.
        logging.getLogger().handlers.clear()
        warnings.resetwarnings()
        for category in (DeprecationWarning, PendingDeprecationWarning, ImportWarning):
            warnings.simplefilter("ignore", category)
        warnings.simplefilter("ignore", ResourceWarning, append=True)
        warnings.showwarning = _show_warning
        sys.argv = ["advsweep", *arguments]
        main()
        code = 0
    except SystemExit as exit_:
        code = exit_.code if isinstance(exit_.code, int) else int(exit_.code is not None)
    except BaseException:  # noqa: BLE001 (nothing may get back into pytest)
        traceback.print_exc()
    finally:
        with contextlib.suppress(OSError, ValueError):
            sys.stdout.flush()
            sys.stderr.flush()
        os._exit(code)


def _show_warning(
    message: Warning | str,
    category: type[Warning],
    filename: str,
    lineno: int,
    file: object = None,
    line: str | None = None,
) -> None:
    sys.stderr.write(warnings.formatwarning(message, category, filename, lineno, line))


def commands() -> Iterator[tuple[str, Callable[..., None]]]:
    """Yields every command of advsweep and its function."""
    group: Any = typer.main.get_command(app)
    context = typer.Context(group)
    for name in (name for entries in COMMANDS.values() for name in entries):
        yield name, inspect.unwrap(group.get_command(context, name).callback)


@pytest.fixture
def advsweep(tmp_path):
    """Runs `advsweep ARGUMENTS` in an empty folder and returns the finished process."""
    return lambda *arguments, **environment: _advsweep(tmp_path, *arguments, **environment)


@pytest.fixture(scope="session")
def fake_folder(tmp_path_factory, cache_directory):
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
def finished(fake_folder):
    """Runs `advsweep ARGUMENTS` in the folder of the finished sweep, which it must not change."""
    return lambda *arguments, **environment: _advsweep(fake_folder, *arguments, **environment)


@pytest.fixture
def called(monkeypatch, capsys):
    """`called(*ARGUMENTS)` in this process: exit code, stdout, stderr; for commands that read."""

    def call(*arguments: str) -> tuple[int, str, str]:
        monkeypatch.setattr("sys.argv", ["advsweep", *arguments])
        code = 0
        try:
            main()
        except SystemExit as exit_:
            code = int(exit_.code or 0)
        printed = capsys.readouterr()
        if code in (0, 1):
            check_output(arguments, printed.out)
        return code, printed.out, printed.err

    return call


@pytest.fixture
def in_process(fake_folder, monkeypatch, called):
    """`called` in the folder of the finished sweep."""
    monkeypatch.chdir(fake_folder)
    return called


@pytest.fixture
def succeeds(called):
    """`succeeds(*ARGUMENTS)`: stdout and stderr of a command that must succeed."""

    def call(*arguments: str) -> tuple[str, str]:
        code, out, err = called(*arguments)
        assert code == 0, err
        return out, err

    return call


@pytest.fixture
def refused(monkeypatch, called, tmp_path):
    """`refused(words, *ARGUMENTS)` expects exit code 2 and one line on stderr with the words."""

    def call(words: Sequence[str], *arguments: str) -> None:
        monkeypatch.chdir(tmp_path)
        code, out, err = called(*arguments)
        assert (code, out) == (2, "")
        assert err.startswith("advsweep: ")
        assert err.count("\n") == 1
        for word in words:
            assert word in err
        assert list(tmp_path.iterdir()) == []

    return call


@pytest.fixture
def advsweep_with(tmp_path, install):
    """`advsweep_with(entry_points, **modules)` returns a command that sees such a package.

    Each call is a new interpreter: registries look for other packages once in a process.
    """

    def make(
        points: dict[str, dict[str, str]], *, package: str = "package-of-others", **modules: str
    ) -> Advsweep:
        folder = install(package, points, **modules)
        path = os.pathsep.join([str(folder), *filter(None, [os.environ.get("PYTHONPATH")])])
        return lambda *arguments: subprocess.run(
            [sys.executable, "-c", "from advsweep.cli import main; main()", *arguments],
            cwd=tmp_path,
            env={**os.environ, "PYTHONPATH": path},
            capture_output=True,
            text=True,
            timeout=240,
            check=False,
        )

    return make
