"""Commands that read, on a store in a folder that cannot be written."""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

COMMANDS = [
    ["ls"],
    ["ls", "two", "--format", "json"],
    ["show", "1"],
    ["report", "two", "--format", "csv"],
    ["report", "--where", "seed>0", "--format", "json"],
    ["plot", "two", "--figure", "curves", "--format", "csv"],
    ["plot", "two", "--figure", "curves", "-o", "OUT/curves.svg"],
    ["claims", "demo"],
    ["export", "1", "--to", "csv", "--table", "metrics"],
    ["status", "two"],
    ["logs", "1"],
    ["sweep", "--dry-run", "backend=fake", "seed=0,1"],
    ["db", "version"],
    ["merge", "ARCHIVE/advsweep.db", "--store", "OUT/other.db"],
]
"""Where each of them writes, if at all, is another folder."""

# Everything is imported, and each command done once, before the folder cannot be written: as
# another user the process may read no more of Python.
PROGRAM = """
import json, os, subprocess, sys
from typer.testing import CliRunner
from advsweep.cli.app import app

archive, how, out, commands = sys.argv[1], sys.argv[2], sys.argv[3], json.loads(sys.argv[4])
os.environ["ADVSWEEP_STORE"] = os.path.join(archive, "advsweep.db")

def results(at):
    found = []
    for command in commands:
        words = [w.replace("ARCHIVE", archive).replace("OUT", out + at) for w in command]
        done = CliRunner().invoke(app, words)
        error = "" if done.exception is None else repr(done.exception)
        found.append((done.exit_code, done.output.replace(out + at, "OUT"), error))
    return found

before = results("/out-a")
if how == "mount":
    subprocess.run(["mount", "--bind", archive, archive], check=True)
    subprocess.run(["mount", "-o", "remount,ro,bind", archive], check=True)
elif os.geteuid() == 0:
    os.setgid(65534)
    os.setuid(65534)
after = results("/out-b")
try:
    open(os.path.join(archive, "new"), "w")
except OSError:
    print(json.dumps([before, after]))
"""


@pytest.fixture
def archive(fake_folder: Path) -> Iterator[Path]:
    """A copy of the finished sweep that nobody can write; its folder is readable for all."""
    above = Path(tempfile.mkdtemp(prefix="advsweep-test-"))
    folder = above / "archive"
    shutil.copytree(fake_folder, folder)
    # What a sweep makes is its owner's alone; an archive is for others.
    for path in folder.rglob("*"):
        path.chmod(0o755 if path.is_dir() else 0o644)
    for out in ("out-a", "out-b"):
        (above / out).mkdir()
        (above / out).chmod(0o777)
    above.chmod(0o755)
    folder.chmod(0o555)
    yield folder
    folder.chmod(0o755)
    shutil.rmtree(above)


@pytest.mark.slow
@pytest.mark.parametrize("how", ["mount", "user"])
def test_commands_that_read_need_no_folder_that_can_be_written(archive: Path, how: str) -> None:
    alone = ["unshare", "-m"] if how == "mount" else []
    program = [*alone, sys.executable, "-c", PROGRAM]
    done = subprocess.run(
        [*program, str(archive), how, str(archive.parent), json.dumps(COMMANDS)],
        cwd=archive.parent,
        capture_output=True,
        text=True,
        check=False,
    )
    if how == "mount" and any(words in done.stderr for words in ("unshare failed", "mount:")):
        pytest.skip("this user may mount nothing")
    assert done.returncode == 0, done.stderr
    before, after = json.loads(done.stdout.splitlines()[-1])
    for command, own, other in zip(COMMANDS, before, after, strict=True):
        # 2: the claims name rows that the runs here do not have.
        assert own[0] in (0, 1, 2), (command, own)
        assert other == own, command
