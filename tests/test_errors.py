"""The errors' tree and their hints."""

from __future__ import annotations

from advsweep import errors
from advsweep.errors import nearest


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
    many = [f"name{i:02}" for i in range(20)]
    assert nearest("zzz", many).startswith("there are 20: name00, ")
