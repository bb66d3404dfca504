"""Commands whose standard streams are closed, full, or no longer read by anybody."""

from __future__ import annotations

import os
import shlex
import subprocess
import sys
from pathlib import Path

import pytest

from advsweep import __version__
from advsweep.store import Status, open_store
from tests.cli.conftest import FAKE

MAIN = shlex.join([sys.executable, "-c", "from advsweep.cli import main; main()"])


@pytest.fixture
def shell(tmp_path):
    """`shell(streams, *ARGUMENTS)`: a command with a shell's redirections, in an empty folder."""

    def called(streams, *arguments):
        command = ["bash", "-c", f"{MAIN} {shlex.join(arguments)} {streams}"]
        return subprocess.run(
            command, cwd=tmp_path, capture_output=True, text=True, timeout=240, check=False
        )

    return called


def _statuses(folder: Path) -> list[Status]:
    with open_store(str(folder / "advsweep.db"), create=False) as store:
        return [run.status for run in store.runs.select(newest_first=False)]


@pytest.mark.slow
def test_a_run_without_stderr_is_trained(shell, tmp_path):
    done = shell("2>&-", "run", *FAKE)
    assert (done.returncode, done.stderr) == (0, "")
    assert _statuses(tmp_path) == [Status.DONE]


@pytest.mark.slow
@pytest.mark.parametrize("streams", ["<&- >&- 2>&-", "2> >(head -c1 >&2)"])
def test_the_exit_code_of_a_sweep_that_nobody_hears_is_right(shell, tmp_path, streams):
    done = shell(streams, "sweep", *FAKE, "backend.step_seconds=0.02", "backend.fail_at=0,5")
    assert done.returncode == 1
    assert _statuses(tmp_path) == [Status.DONE, Status.FAILED]


def test_the_module_is_the_command():
    command = [sys.executable, "-m", "advsweep", "--version"]
    assert subprocess.check_output(command, text=True) == f"advsweep {__version__}\n"


def test_closed_streams_are_no_place_for_other_files():
    program = """if True:
        import os
        from advsweep.cli.output import open_closed_streams
        open_closed_streams()
        opened = os.open("/dev/zero", os.O_RDONLY)
        null = os.stat(os.devnull)
        alike = [os.fstat(d).st_rdev == null.st_rdev and os.get_inheritable(d) for d in range(3)]
        os._exit(0 if opened > 2 and all(alike) else 1)
    """
    done = subprocess.run(
        ["bash", "-c", f"{shlex.join([sys.executable, '-c', program])} <&- >&- 2>&-"], check=False
    )
    assert done.returncode == 0


@pytest.mark.parametrize("arguments", [["ls"], ["ls", "--format", "json"], ["--help"]])
def test_a_reader_that_leaves_ends_a_command_quietly(fake_folder, arguments):
    reader, writer = os.pipe()
    os.close(reader)
    done = subprocess.run(
        [sys.executable, "-c", "from advsweep.cli import main; main()", *arguments],
        cwd=fake_folder,
        stdout=writer,
        stderr=subprocess.PIPE,
        text=True,
        timeout=240,
        check=False,
    )
    os.close(writer)
    assert (done.returncode, done.stderr) == (0, "")


def test_reports_another_broken_pipe():
    program = """if True:
        import sys
        from advsweep.cli import main
        from advsweep.cli.app import app

        @app.command("broken")
        def broken():
            raise BrokenPipeError(32, "Broken pipe")

        sys.argv[1:] = ["broken"]
        main()
    """
    done = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, timeout=240, check=False
    )
    assert (done.returncode, done.stdout) == (1, "")
    assert done.stderr == "advsweep: Broken pipe\n"
