"""Checkpoints: whole or not there, whatever happens while they are written or read."""

import errno
import json
from pathlib import Path

import pytest

from advsweep.backends import checkpoints as module
from advsweep.backends.checkpoints import Checkpoints
from advsweep.errors import CheckpointError

RUN = "a" * 64
FILES = {"weights": bytes(range(256)) * 40, "state": b"{}"}


@pytest.fixture
def checkpoints(tmp_path):
    return Checkpoints(tmp_path, RUN)


def damage(path):
    content = bytearray(path.read_bytes())
    content[len(content) // 2] ^= 1
    path.write_bytes(content)


def test_the_manifest_says_what_is_there(checkpoints):
    manifest = json.loads((checkpoints.save(3, FILES) / "manifest.json").read_text())
    assert manifest == {
        "format": 1,
        "step": 3,
        "run": RUN,
        "files": {
            "weights": {
                "bytes": 10240,
                "sha256": "e96760a87768717bcebcfd25ddc7d46b4dbc95a4b0014def080c08539f7d90d0",
            },
            # sha256 of "{}"
            "state": {
                "bytes": 2,
                "sha256": "44136fa355b3678a1146ad16f7e8649e94fb4fc21fe77e8310c060f61caaff8a",
            },
        },
    }


def test_a_step_can_be_saved_again(checkpoints):
    checkpoints.save(5, {"weights": b"old", "more": b"gone"})
    checkpoints.save(5, FILES)
    assert dict(checkpoints.load(5).files) == FILES
    assert [p.name for p in checkpoints.directory.iterdir()] == ["step-000005"]


def test_a_missing_step_is_named_with_those_that_are_there(checkpoints):
    with pytest.raises(CheckpointError, match=r"no checkpoint of step 5; .*: none"):
        checkpoints.load(5)
    checkpoints.save(2, FILES)
    checkpoints.save(4, FILES)
    with pytest.raises(CheckpointError, match=r"no checkpoint of step 5; .*: 2, 4"):
        checkpoints.load(5)


@pytest.mark.parametrize(
    ("harm", "reason"),
    [
        (lambda path: damage(path / "weights"), "weights: wrong checksum"),
        (lambda path: (path / "weights").write_bytes(b"short"), "weights: wrong length"),
        (lambda path: (path / "weights").unlink(), "weights: there is no such file"),
        (lambda path: (path / "manifest.json").unlink(), "manifest.json: there is no such file"),
        (lambda path: (path / "manifest.json").write_bytes(b""), "manifest.json: unreadable"),
        (lambda path: (path / "manifest.json").write_bytes(b"\xff"), "manifest.json: unreadable"),
        (lambda path: (path / "manifest.json").write_text("[1]"), "manifest.json: unreadable"),
        (
            lambda path: (path / "manifest.json").write_text(
                '{"format": 2, "step": 10, "run": "", "files": {}}'
            ),
            "manifest.json: unreadable, or not of format 1",
        ),
    ],
)
def test_a_damaged_checkpoint_is_passed_over(checkpoints, harm, reason):
    checkpoints.save(5, FILES)
    harm(checkpoints.save(10, FILES))
    with pytest.raises(CheckpointError, match=rf"step 10 .* is damaged \({reason}"):
        checkpoints.load(10)
    lines = []
    found = checkpoints.newest_sound(lines.append)
    assert found is not None
    assert found.step == 5
    (line,) = lines
    assert line.startswith(f"checkpoint step 10 is damaged ({reason}")
    assert line.endswith("resuming from step 5")


def test_another_runs_checkpoint_is_refused(checkpoints, tmp_path):
    checkpoints.save(5, FILES)
    other = Checkpoints(tmp_path, "b" * 64)
    with pytest.raises(CheckpointError, match="belongs to the run aaaaaaaaaaaa, not to bbbbbbbb"):
        other.load(5)
    with pytest.raises(CheckpointError, match="belongs to the run"):
        other.newest_sound(print)


@pytest.mark.parametrize(
    ("keep_last", "keep_every", "left"),
    [(1, 0, [60]), (2, 0, [50, 60]), (1, 20, [20, 40, 60]), (2, 30, [30, 50, 60]), (9, 0, None)],
)
def test_pruning(checkpoints, keep_last, keep_every, left):
    steps = [10, 20, 30, 40, 50, 60]
    for step in steps:
        checkpoints.save(step, FILES)
    gone = checkpoints.prune(keep_last, keep_every)
    left = steps if left is None else left
    assert checkpoints.steps() == left
    assert gone == [checkpoints.path(step) for step in steps if step not in left]


def test_a_full_disk_leaves_the_last_checkpoint(checkpoints, monkeypatch):
    checkpoints.save(5, FILES)
    write = module.write_durably

    def full(path, content):
        if path.name == "state":
            raise OSError(errno.ENOSPC, "No space left on device", str(path))
        write(path, content)

    monkeypatch.setattr(module, "write_durably", full)
    for step in (5, 10):
        with pytest.raises(CheckpointError, match="no space is left on the disk; free") as caught:
            checkpoints.save(step, FILES)
        assert "resumes from step 5" in str(caught.value)
    assert [p.name for p in checkpoints.directory.iterdir()] == ["step-000005"]
    assert dict(checkpoints.load(5).files) == FILES


@pytest.mark.parametrize("moment", ["a file", "the manifest", "the rename"])
def test_a_process_killed_while_it_writes_leaves_nothing_half(checkpoints, monkeypatch, moment):
    class KilledError(BaseException):
        pass

    def die(*_):
        raise KilledError

    checkpoints.save(5, FILES)
    write = module.write_durably
    with monkeypatch.context() as patched:
        if moment == "the rename":
            patched.setattr(Path, "rename", die)
        else:
            name = "state" if moment == "a file" else "manifest.json"
            patched.setattr(
                module, "write_durably", lambda p, c: die() if p.name == name else write(p, c)
            )
        with pytest.raises(KilledError):
            checkpoints.save(10, FILES)
    assert checkpoints.steps() == [5]
    assert len(list(checkpoints.directory.iterdir())) == 2
    checkpoints.discard_unfinished()
    assert [p.name for p in checkpoints.directory.iterdir()] == ["step-000005"]


@pytest.mark.parametrize("after", ["state", "manifest.json"])
def test_a_writer_that_wakes_up_in_the_middle_leaves_another_alone(checkpoints, monkeypatch, after):
    """One process slept in its write of step 10 while another took over and came there too."""
    write = module.write_durably
    other = iter([True])

    def interrupted(path, content):
        write(path, content)
        if path.name == after and next(other, False):
            checkpoints.save(10, FILES)
            checkpoints.save(15, FILES)

    monkeypatch.setattr(module, "write_durably", interrupted)
    checkpoints.save(10, FILES)
    names = sorted(p.name for p in checkpoints.directory.iterdir())
    assert names == ["step-000010", "step-000015"]
    assert all(dict(checkpoints.load(step).files) == FILES for step in (10, 15))


def test_a_writer_whose_unfinished_checkpoint_is_gone_says_so_and_touches_no_other(
    checkpoints, monkeypatch
):
    write = module.write_durably

    def interrupted(path, content):
        checkpoints.discard_unfinished()
        (checkpoints.directory / ".partial-000005-of-another").mkdir()
        write(path, content)

    monkeypatch.setattr(module, "write_durably", interrupted)
    with pytest.raises(CheckpointError, match="step 10 cannot be written"):
        checkpoints.save(10, FILES)
    assert [p.name for p in checkpoints.directory.iterdir()] == [".partial-000005-of-another"]
