"""aapo."""

from __future__ import annotations

import pytest
import torch

from advsweep.errors import BatchError
from advsweep.estimators import GroupBatch, build_estimator


def batch_of(rewards: list[list[float]], references: list[list[float]]) -> GroupBatch:
    return GroupBatch(
        rewards=torch.tensor(rewards, dtype=torch.float64), ref_rewards=torch.tensor(references)
    )


TWO_OF_EIGHT = [1.0] * 2 + [0.0] * 6


@pytest.mark.parametrize(
    ("reference", "success", "failure"),
    [
        (0.0, 2.0120508076, -0.5773502692),  # √3 + min(1, 0.28), -1/√3 + 0
        (1.0, 1.7320508076, -0.7773502692),  # √3 + 0, -1/√3 + max(-1, -0.2)
        (0.9, 1.8320508076, -0.7773502692),  # √3 + 0.1, the other as before
    ],
)
def test_worked_values(reference: float, success: float, failure: float) -> None:
    values = build_estimator("aapo")(batch_of([TWO_OF_EIGHT], [[reference] * 8]))[0]
    assert values[:2].tolist() == pytest.approx([success] * 2, abs=1e-7)
    assert values[2:].tolist() == pytest.approx([failure] * 6, abs=1e-7)


def test_homogeneous_groups_keep_their_margin() -> None:
    rewards = [[1.0, 1.0], [0.0, 0.0], [1.0, 1.0]]
    references = [[1.0, 0.0], [1.0, 0.0], [1.0, 1.0]]
    values = build_estimator("aapo")(batch_of(rewards, references))
    expected = [[0, 0.28], [-0.2, 0], [0, 0]]
    assert torch.equal(values, torch.tensor(expected, dtype=torch.float64))


@pytest.mark.parametrize("preset", ["released", "released_1_5b"])
def test_conventions_of_the_released_script_for_1_5b(preset: str) -> None:
    released = build_estimator("aapo", preset=preset)
    assert (released.plain()["std"], released.plain()["eps"]) == ("sample", 1e-4)
    assert (
        released.identity()
        == build_estimator("aapo", std="sample", eps=1e-4, zero_variance="formula").identity()
    )
    # Sample σ = √(3/14).
    values = released(batch_of([TWO_OF_EIGHT], [[0.0] * 8]))[0]
    assert values[[0, 7]].tolist() == pytest.approx([1.8998352502, -0.5399450834], abs=1e-9)
    explicit = build_estimator("aapo", preset=preset, std="population")
    assert (explicit.plain()["std"], explicit.plain()["eps"]) == ("population", 1e-4)
    # grpo's preset of the same name is that of another paper's code.
    assert build_estimator("grpo", preset="released").plain()["eps"] == 1e-6


def test_the_released_script_for_7b_divides_by_no_standard_deviation() -> None:
    released = build_estimator("aapo", preset="released_7b")
    values = released(batch_of([TWO_OF_EIGHT], [[0.0] * 8]))[0]
    assert values[[0, 7]].tolist() == pytest.approx([1.03, -0.25])
    scaled = build_estimator("aapo", preset="released_7b", scale="std")
    assert scaled.identity() == build_estimator("aapo", preset="released").identity()


@pytest.mark.parametrize("bad", [float("nan"), float("inf")])
def test_references_that_are_not_finite_are_refused(bad: float) -> None:
    with pytest.raises(BatchError, match="ref_rewards: expected finite numbers"):
        build_estimator("aapo")(batch_of([[1.0, 0.0]], [[0.0, bad]]))
