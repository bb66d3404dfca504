"""Cautions below a table."""

from __future__ import annotations

import pytest

from advsweep.report import build_report, describe_findings, lay_out

LARGE = "k is above a quarter of the"
SIGN = "nearly all advantages are theirs"


def _cautions(lab, part, **options):
    report = build_report(lab.store, "demo", **options)
    assert set(report.cautions) <= set(lay_out(report).notes)
    return [line for line in report.cautions if part in line]


@pytest.mark.parametrize(
    ("samples", "columns", "named"),
    [
        (8, ["pass@2"], None),
        (7, ["pass@2"], "p@2"),
        (8, ["pass@2", "pass@4", "pass@8"], "p@4, p@8"),
        (1, ["pass@1"], None),  # a share of all samples, however few
        (8, ["pass@4[level=0]", "pass@2[level=1]"], "level 0 p@4"),
    ],
)
def test_a_k_above_a_quarter_of_the_samples(lab, samples, columns, named):
    lab.samples = samples
    lab.run("grpo", 0, solved=(1, 1))
    found = _cautions(lab, LARGE, columns=columns)
    expected = f"{named}: {LARGE} {samples} samples of a problem"
    assert [line.partition(", where")[0] for line in found] == ([] if named is None else [expected])


def _start(constant, success, failure, rate):
    """Masses, and groups of four of which a share has one right answer, and the others four."""
    ones = (1 - rate) * 4 / 3
    return constant(
        mass__success=success, mass__failure=failure, solved__0=0.0, solved__1=ones,
        solved__2=0.0, solved__3=0.0, solved__4=1 - ones,
    )  # fmt: skip


@pytest.mark.parametrize(
    ("success", "failure", "rate", "expected"),
    [
        (0.0, 0.7, 0.3, "grpo (70%): so many rollouts of the first 10 steps are wrong"),
        (0.09, 0.3, 0.35, "grpo (65%): so many rollouts of the first 10 steps are wrong"),
        (0.7, 0.0, 0.7, "grpo (70%): so many rollouts of the first 10 steps are right"),
        (0.0, 0.5, 0.5, None),  # as frequent as the others
        (0.3, 0.0, 0.3, None),  # the rarer outcome alone is learnt from
        (0.11, 0.3, 0.3, None),  # less than three times
        (0.2, 0.2, 0.3, None),  # advantages that sum to zero
        (0.0, 0.0, 0.3, None),
    ],
)
def test_a_start_that_lets_one_sign_dominate(lab, constant, success, failure, rate, expected):
    for seed in range(2):
        points = _start(constant, success, failure, rate)
        lab.run("grpo", seed, points=points, group_size=4)
    found = [line.partition(", and")[0] for line in _cautions(lab, SIGN)]
    assert found == ([] if expected is None else [expected])


def test_later_steps_are_not_the_start(lab):
    points = [("mass/success", step, 0.2) for step in range(1, 21)]
    points += [("mass/failure", step, 0.2 if step <= 10 else 9.0) for step in range(1, 21)]
    points += [("solved/1", step, 1.0) for step in range(1, 21)]
    lab.run("grpo", 0, points=points)
    assert _cautions(lab, SIGN) == []


def test_runs_without_these_metrics_have_no_caution(lab, constant):
    lab.run("grpo", 0, points=constant(mass__failure=0.7))
    lab.run("rloo", 0, points=constant(mass__failure=0.7, mass__success=0.0))
    assert _cautions(lab, SIGN) == []


def test_rows_that_learned_nothing(lab, constant):
    equal = {"cost__utilisation": 1.0, "collapse__acr": 1.0, "reward__mean": 0.0}
    zero = constant(**equal, collapse__all_wrong=1.0, collapse__acr_after=1.0)
    for seed in range(2):
        lab.run("grpo", seed, points=zero)
        lab.run("rloo", seed, points=zero)
        # Advantages in groups of equal rewards teach something.
        lab.run("psr", seed, points=constant(**equal, collapse__acr_after=0.0))
    lab.run("fade", 0, points=zero)
    lab.run("fade", 1, points=constant(**equal, collapse__acr_after=0.5))
    report = build_report(lab.store, "demo")
    [line] = report.untaught
    assert line in lay_out(report).notes
    assert describe_findings(report)[0] == f"{line}."
    assert line.startswith("grpo, rloo, fade (1 of 2 runs): nothing was learned: the rewards were")
