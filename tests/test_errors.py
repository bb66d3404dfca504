"""The errors' tree and their hints."""

from __future__ import annotations

import errno
import os
from pathlib import Path

import pytest

import advsweep
from advsweep import errors
from advsweep.errors import counted, explain_os_error, nearest


def test_every_error_is_in_one_tree() -> None:
    raised = [
        value
        for value in vars(errors).values()
        if isinstance(value, type) and issubclass(value, Exception)
    ]
    for error in raised:
        assert issubclass(error, errors.AdvsweepError | errors.AdvsweepWarning)
        assert error.__name__ in (errors.__doc__ or "")


def test_nearest_names() -> None:
    known = ["grpo", "rloo"]
    assert nearest("grop", known) == "did you mean 'grpo'?"
    assert nearest("zzz", known) == "known: grpo, rloo"
    assert nearest("zzz", []) == "there are none"
    metrics = ["collapse/acr", "collapse/acr/level_0", "reward/mean"]
    assert nearest("ACR", metrics) == "did you mean 'collapse/acr' or 'collapse/acr/level_0'?"
    assert nearest("x", ["x/y"]) == "known: x/y"
    # A name that is known in general says nothing about what is there.
    assert nearest("pass@1", ["pass@1", "reward/mean"]) == "known: reward/mean"
    many = [f"name{i:02}" for i in range(20)]
    assert nearest("zzz", many).startswith("there are 20: name00, ")
    # Where they are listed is said instead of the first ones.
    assert nearest("zzz", many, "keys").startswith("there are 20: `advsweep keys` lists ")
    # A word of another tool that is spelt more alike than any name of ours.
    assert nearest("num_generation", ["generation", "group"], "keys") == "did you mean group_size?"
    assert nearest("generatoin", ["generation", "group"], "keys") == "did you mean 'generation'?"
    # `ipo` is listed, and less alike.
    assert nearest("igpo", ["gigpo", "rloo"], "values.estimator") == "did you mean 'gigpo'?"


def test_nouns_follow_their_number() -> None:
    assert [counted(n, "run") for n in (0, 1, 2)] == ["0 runs", "1 run", "2 runs"]
    assert [counted(n, "process", "processes") for n in (1, 2)] == ["1 process", "2 processes"]
    assert [counted(text, "step") for text in ("1", "1, 2", "1,024")] == [
        "1 step",
        "1, 2 steps",
        "1,024 steps",
    ]


@pytest.mark.parametrize(
    ("number", "words"),
    [
        (errno.EEXIST, "a/b: it exists already; name another path"),
        (errno.ENOENT, "a/b: there is no such file or folder; check the path"),
        (errno.ENOSPC, "a/b: no space is left on the disk; free some room or name another disk"),
        (errno.EACCES, "a/b: no permission; change its permissions or name another path"),
        (errno.ENOTDIR, "a/b: a part of its path is a file, not a folder; check the path"),
        # One that users seldom meet is as the system words it.
        (errno.ETXTBSY, f"a/b: {os.strerror(errno.ETXTBSY)}"),
    ],
)
def test_errors_of_the_system_are_worded_for_people(number: int, words: str) -> None:
    error = OSError(number, os.strerror(number), "a/b")
    assert explain_os_error(error) == words
    assert "[Errno" not in explain_os_error(error)


def test_an_open_file_has_no_name() -> None:
    full = os.open("/dev/full", os.O_WRONLY)
    with pytest.raises(OSError, match="No space left") as caught:
        os.write(full, b"x")
    os.close(full)
    expected = "standard output, or another open file: no space is left on the disk; "
    assert explain_os_error(caught.value).startswith(expected)


def test_no_module_words_errors_of_the_system_itself() -> None:
    """`strerror` is for `errors.py`, and for processes that cannot import it."""
    package = Path(advsweep.__file__).parent
    alone = {"errors.py", "backends/command/supervisor.py", "tasks/verifiers/isolation.py"}
    found = {
        path.relative_to(package).as_posix()
        for path in package.rglob("*.py")
        if ".strerror" in path.read_text("utf-8")
    }
    assert found <= alone
