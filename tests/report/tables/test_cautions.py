"""Cautions below a table."""

from __future__ import annotations

import pytest

from advsweep.report.claims.sentences import describe_findings
from advsweep.report.tables.build import build_report
from advsweep.report.tables.render import lay_out
from advsweep.report.tables.request import ReportRequest
from advsweep.report.tables.types import NoteKind

LARGE = "k is above a quarter of the"


def _cautions(lab, part, **options):
    report = build_report(lab.store, ReportRequest("demo", **options))
    assert set(report.texts(NoteKind.CAUTION)) <= set(lay_out(report).notes)
    return [line for line in report.texts(NoteKind.CAUTION) if part in line]


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
    report = build_report(lab.store, ReportRequest("demo"))
    [line] = report.texts(NoteKind.WITHOUT_SIGNAL)
    assert line in lay_out(report).notes
    assert describe_findings(report)[0] == f"{line}."
    assert line.startswith("grpo, rloo, fade (1 of 2 runs): nothing was learned: the rewards were")


VECTOR = "runs used different vector instructions of torch"


def _record_capability(lab, run_id, capability):
    environment = lab.store.runs.environment(run_id)
    processor = {"family": "25", "vector_capability": capability}
    lab.store.runs.set_environment(run_id, {**environment, "processor": processor})


def test_runs_with_different_vector_instructions_are_named(lab):
    runs = [lab.run("grpo", seed) for seed in range(4)]
    for run_id, capability in zip(runs, ["AVX2", "AVX512", "AVX2"], strict=False):
        _record_capability(lab, run_id, capability)
    [line] = _cautions(lab, VECTOR)
    assert "(AVX2: 2 runs, AVX512: 1 run)" in line


def test_runs_that_recorded_no_vector_instructions_are_no_other_machine(lab):
    runs = [lab.run("grpo", seed) for seed in range(3)]
    assert _cautions(lab, VECTOR) == []
    _record_capability(lab, runs[0], "AVX2")
    lab.store.runs.set_environment(runs[1], {"cpu": "A CPU", "processor": "unreadable"})
    assert _cautions(lab, VECTOR) == []
