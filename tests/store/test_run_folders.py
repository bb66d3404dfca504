"""What is copied of the folder of a run from somebody else's store."""

from __future__ import annotations

from pathlib import Path

import pytest

from advsweep.backends.command.records import FOLDER
from advsweep.store.run_folders import COMMAND_FOLDER, copy_folder

pytestmark = pytest.mark.security


def test_the_folder_of_a_command_stays_behind(tmp_path: Path) -> None:
    """A checkpoint of a program may be unpickled by it, and so may hold code."""
    assert COMMAND_FOLDER == FOLDER
    source = tmp_path / "theirs"
    for name in ("output/checkpoint-2/model.pt", "checkpoints/step-000002/output/x", "log.txt"):
        (source / name).parent.mkdir(parents=True, exist_ok=True)
        (source / name).write_text("x")
    left_out = copy_folder(source, tmp_path / "ours", "a" * 64)
    assert left_out == [source / "output"]
    assert not (tmp_path / "ours" / "output").exists()
    assert (tmp_path / "ours" / "checkpoints" / "step-000002" / "output" / "x").exists()
    assert (tmp_path / "ours" / "log.txt").read_text() == "x"
