"""The example that searches with Optuna: it trains, and started again it repeats no run."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

import advsweep

SCRIPT = Path(__file__).parents[1] / "examples/search_with_optuna.py"
QUICK = ("backend=fake", "steps=4", "task.levels=[1]", "evaluation.n=2")


@pytest.mark.slow
def test_a_search_goes_on_where_it_was(tmp_path: Path) -> None:
    def search(trials: int) -> str:
        path = f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"
        done = subprocess.run(
            [sys.executable, str(SCRIPT), str(trials), *QUICK],
            cwd=tmp_path,
            env={**os.environ, "PATH": path},
            capture_output=True,
            text=True,
            check=True,
        )
        return done.stdout

    assert search(2).startswith("best of 2: {'h_star': ")
    first = advsweep.load_runs(str(tmp_path / "advsweep.db"))
    assert list(first["status"]) == ["done"] * 6
    search(3)
    later = advsweep.load_runs(str(tmp_path / "advsweep.db"))
    assert len(later) == 9
    assert list(later["identity"][:6]) == list(first["identity"])
    assert later["attempt"].max() == 1
