"""New files and folders are their owner's alone, whatever the umask."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from advsweep.local_files import make_private_folder, open_private
from tests.cli.conftest import FAKE

pytestmark = pytest.mark.security


@pytest.fixture(autouse=True)
def _open_umask() -> Iterator[None]:
    before = os.umask(0)
    yield
    os.umask(before)


def mode(path: Path) -> int:
    return path.stat().st_mode & 0o777


def test_new_folders_are_private_and_old_ones_stay(tmp_path: Path) -> None:
    (tmp_path / "shared").mkdir(mode=0o775)
    make_private_folder(tmp_path / "shared" / "a" / "b")
    make_private_folder(tmp_path / "shared" / "a" / "b")
    make_private_folder(tmp_path / "shared")
    assert mode(tmp_path / "shared") == 0o775
    assert mode(tmp_path / "shared" / "a") == mode(tmp_path / "shared" / "a" / "b") == 0o700


def test_a_file_in_the_place_of_a_folder_is_an_error(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    with pytest.raises(FileExistsError):
        make_private_folder(tmp_path / "file")
    with pytest.raises(NotADirectoryError):
        make_private_folder(tmp_path / "file" / "folder")


def test_new_files_are_private_and_old_ones_stay(tmp_path: Path) -> None:
    (tmp_path / "old").touch(mode=0o664)
    for name in ("old", "new"):
        with open_private(tmp_path / name, "a", encoding="utf-8") as file:
            file.write("text")
    assert (mode(tmp_path / "old"), mode(tmp_path / "new")) == (0o664, 0o600)


def shared(folder: Path) -> list[str]:
    """What is in a folder that its group or others may use."""
    return [str(path) for path in folder.rglob("*") if mode(path) & 0o077]


@pytest.mark.slow
def test_what_sweeps_and_merges_make_is_private(tmp_path: Path) -> None:
    os.umask(0o022)
    sweep = ("sweep", *FAKE, "--jobs=2", "estimator=grpo,fade")
    for arguments in (sweep, ("merge", "advsweep.db", "--store", "merged.db")):
        done = subprocess.run(
            [sys.executable, "-c", "from advsweep.cli import main; main()", *arguments],
            cwd=tmp_path,
            capture_output=True,
            text=True,
            check=False,
        )
        assert done.returncode == 0, done.stderr
    for made in ("log.txt", "checkpoints/*/*", "advsweep.db", "merged.db"):
        assert list(tmp_path.rglob(made))
    assert shared(tmp_path) == []
