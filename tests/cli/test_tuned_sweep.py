"""A sweep that tunes a key for each arm, from its file to its report, by commands."""

from __future__ import annotations

import csv
import io
import json

import pytest

FILE = """
steps: 12
group_size: 4
prompts_per_step: 16
evaluation: {every: 0, n: 8, k: [1]}
sweep:
  name: fair
  seeds: 2
  tune: {values: [8, 16], extend: 1, seeds: 2}
  controls: [aa, placebo]
  common: {backend: bandit, model: table, task: bandit, optimizer: sgd, executor: debug}
  blocks:
    - estimator: [grpo, rloo]
"""
SIZE = (
    "sweep fair: 8 tuning runs (2 arms x 2 values of optimizer.lr x 2 seeds), and at most 4 more "
    "where the best value is at an edge; then 8 test runs"
)
TITLE = "optimizer.lr tuned for each arm by pass@1 on seeds 1000, 1001 (fair-tuning)"


@pytest.fixture
def file(tmp_path):
    path = tmp_path / "fair.yaml"
    path.write_text(FILE)
    return path


def lines(text: str) -> list[list[str]]:
    return [line.split() for line in text.splitlines()]


@pytest.mark.slow
def test_a_tuned_sweep_from_its_plan_to_its_report(advsweep, file):
    planned = advsweep("sweep", "fair.yaml", "--dry-run")
    assert planned.returncode == 0, planned.stderr
    assert planned.stdout.splitlines()[:2] == [SIZE, TITLE]
    assert ["grpo", "open", "open", "open"] in lines(planned.stdout)
    assert "sweep fair-tuning: 8 runs, 8 missing" in planned.stdout
    assert not (file.parent / "advsweep.db").exists()

    swept = advsweep("sweep", "fair.yaml")
    assert swept.returncode == 0, swept.stderr
    assert SIZE in swept.stderr
    assert "sweep fair: 8 done of 8 runs" in swept.stderr
    [chosen] = [line for line in swept.stderr.splitlines() if line.startswith(TITLE)]

    again = advsweep("sweep", "fair.yaml", "--format", "json")
    assert again.returncode == 0, again.stderr
    record = json.loads(again.stdout)
    assert (record["sweep"], record["done"], record["skipped"]) == ("fair", 0, 8)
    values = {arm["name"]: arm["chosen"] for arm in record["tune"]["arms"]}
    assert set(values) == {"grpo", "rloo"}

    status = advsweep("status", "fair")
    assert status.stdout.startswith("sweep fair: 8 runs, 8 done\n")
    for name, value in values.items():
        [row] = [row for row in lines(status.stdout) if row[:1] == [name]]
        assert f"{value:g}" in row
    assert chosen in advsweep("show", "last").stdout
    assert json.loads(advsweep("status", "fair", "--format", "json").stdout)["tuning"]["arms"]

    report = advsweep("report", "fair", "--columns", "pass@1")
    assert chosen in report.stdout
    table = advsweep("report", "fair", "--columns", "pass@1", "--format", "csv").stdout
    rates = {row.split(",")[0]: row.split(",")[1] for row in table.splitlines()[1:]}
    for name in ("grpo", "grpo (A/A)", "grpo (placebo)"):
        assert float(rates[name]) == values["grpo"]
    assert float(rates["rloo"]) == values["rloo"]

    drawn = advsweep("plot", "fair", "--figure", "rate", "--format", "csv")
    assert drawn.returncode == 0, drawn.stderr
    points = list(csv.DictReader(io.StringIO(drawn.stdout)))
    chosen_there = {p["row"]: float(p["optimizer.lr"]) for p in points if p["chosen"] == "True"}
    assert chosen_there == values
    some = advsweep("plot", "fair", "--figure", "rate", "--where", "estimator=grpo")
    assert "`advsweep plot fair-tuning --figure rate`" in some.stderr

    done = json.loads(advsweep("sweep", "fair.yaml", "--dry-run", "--format", "json").stdout)
    assert (done["name"], done["test_runs"], done["states"]["done"]) == ("fair", 8, 8)
    assert done["tuning_runs"] <= done["most_tuning_runs"] == 12
    refused = advsweep("sweep", "fair.yaml", "--force")
    assert refused.returncode == 2
    assert "--force: a tuned sweep always resumes" in refused.stderr
