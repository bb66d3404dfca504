"""Where the numbers of a report come from."""

from __future__ import annotations

import pytest

from advsweep.report.tables.build import build_report
from advsweep.report.tables.provenance import provenance
from advsweep.report.tables.request import ReportRequest

X86 = {"vendor": "AuthenticAMD", "family": "25", "model": "1", "stepping": "1"}


@pytest.mark.parametrize(
    ("recorded", "expected"),
    [
        (None, "A CPU"),  # by a version that kept the name alone
        ({}, "A CPU"),
        (X86, "A CPU (AuthenticAMD family 25 model 1 stepping 1)"),
        (
            {**X86, "vector_capability": "AVX2"},
            "A CPU (AuthenticAMD family 25 model 1 stepping 1, torch AVX2)",
        ),
        ({"vector_capability": "DEFAULT"}, "A CPU (torch DEFAULT)"),
        ("unreadable", "A CPU"),
    ],
)
def test_a_machine_is_told_by_its_processor(lab, recorded, expected):
    run_id = lab.run()
    environment = lab.store.runs.environment(run_id)
    if recorded is not None:
        environment["processor"] = recorded
    lab.store.runs.set_environment(run_id, environment)
    report = build_report(lab.store, ReportRequest("demo"))
    assert provenance(report)[-1] == f"made on {expected}, 2 cores, 8 GiB"


def test_machines_of_one_name_with_other_processors_are_two(lab):
    for seed, model in enumerate(["1", "17"]):
        run_id = lab.run(seed=seed)
        environment = lab.store.runs.environment(run_id)
        processor = {**X86, "model": model}
        lab.store.runs.set_environment(run_id, {**environment, "processor": processor})
    report = build_report(lab.store, ReportRequest("demo"))
    assert report.provenance["hardware"] == [
        "A CPU (AuthenticAMD family 25 model 1 stepping 1), 2 cores, 8 GiB",
        "A CPU (AuthenticAMD family 25 model 17 stepping 1), 2 cores, 8 GiB",
    ]
