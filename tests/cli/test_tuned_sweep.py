"""The plan of a sweep that tunes a key for each arm; docs/fair.md shows its other commands."""

from __future__ import annotations

import json
from pathlib import Path

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


def test_a_tuned_sweep_is_planned_and_not_forced(succeeds, called, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    Path("fair.yaml").write_text(FILE)
    planned, err = succeeds("sweep", "fair.yaml", "--dry-run", "estimator.scope=batch")
    assert err.count("estimator.scope: set for grpo alone, as rloo has no such parameter") == 1
    lines = planned.splitlines()
    assert lines[:2] == [SIZE, TITLE]
    assert ["grpo", "open", "open", "open"] in [line.split() for line in lines]
    assert "sweep fair-tuning: 8 runs, 8 missing" in planned
    record = json.loads(succeeds("sweep", "fair.yaml", "--dry-run", "--format", "json")[0])
    assert (record["tuning_runs"], record["most_tuning_runs"], record["test_runs"]) == (8, 12, 8)
    code, _, err = called("sweep", "fair.yaml", "--force")
    assert code == 2
    assert "--force: a tuned sweep always resumes" in err
    assert [path.name for path in tmp_path.iterdir()] == ["fair.yaml"]
