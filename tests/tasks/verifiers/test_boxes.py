"""The last box of a text."""

from __future__ import annotations

import pytest

from advsweep.tasks.verifiers.boxes import boxed_answer, last_boxed


@pytest.mark.parametrize(
    ("text", "boxed"),
    [
        (r"\boxed{7}", "7"),
        (r"first \boxed{1}, then \boxed{ \frac{1}{2} }.", r"\frac{1}{2}"),
        (r"\boxed{\{1, 2\}}", r"\{1, 2\}"),
        (r"\boxed{\left\{ x \right.}", r"\left\{ x \right."),
        (r"\boxed {3}", "3"),
        (r"\fbox{3}", "3"),
        (r"\boxed 3", "3"),
        (r"\boxed{\boxed{3}}", "3"),
        (r"\boxed{3}. It is in \boxed{}.", "3"),
        (r"$\boxed{1}$ and $\boxed{2}$", "1, 2"),
        (r"\boxed{1}, \boxed{2}, \text{ and } \boxed{3}", "1, 2, 3"),
        (r"\boxed{1}, which is \boxed{1}", "1"),
        (r"\boxed{1}, \boxed{1}", "1"),
        (r"\boxed{1}. No: \boxed{2}", "2"),
        (r"\boxed{1} or \boxed{2}", ""),
        (r"\boxed{1} \text{ or } \boxed{2}", ""),
        (r"\boxed{1} but \boxed{2 is cut of", ""),
        (r"\boxed{}", None),
        ("", None),
        ("\\boxed{" * 200_000, ""),  # in linear time
        ("\\boxed{}" * 20_000, None),
        ("\\boxed" * 100_000, None),
        ("\\fbox{1}" + "\\boxed{}" * 20_000, "1"),
        ("\\fboxer, a box and \\mbox{2}", None),
        ("\\boxed{" + "{" * 100_000 + "}" * 100_000, ""),
    ],
)
def test_the_last_box_counts(text: str, boxed: str | None) -> None:
    assert boxed_answer(text) == boxed
    assert last_boxed(text) == boxed or boxed in {"", "1, 2", "1, 2, 3"}


def test_a_reference_solution_has_its_last_box() -> None:
    """A solution in the data does not hedge: `last_boxed` takes the last box alone."""
    assert last_boxed(r"so \boxed{3} or \boxed{4}") == "4"
    assert last_boxed(r"\boxed{3} and \boxed{4}, as in \boxed{}") == "4"
    assert last_boxed(r"\boxed{3} and \boxed{4") is None
