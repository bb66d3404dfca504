"""A focused test of store, statistics or report needs no torch, which takes seconds to load."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
TESTS = (
    "tests/store/test_runs.py::test_a_run_is_read_as_it_was_planned[sqlite]",
    "tests/statistics/test_intervals.py::test_worked_values",
    "tests/report/tables/test_rows.py::test_refuses_rows_that_differ_in_another_key",
)
# A test that needs torch fails with the import that asks for it.
PROGRAM = """
import sys, traceback

class NoTorch:
    def find_spec(self, name, path=None, target=None):
        if name == "torch":
            traceback.print_stack()
            sys.exit("this test imports torch: see the imports above")

sys.meta_path.insert(0, NoTorch())

import pytest

sys.exit(pytest.main([*sys.argv[1:], "-q", "-p", "no:cacheprovider"]))
"""


@pytest.mark.slow
def test_focused_tests_import_no_torch():
    command = [sys.executable, "-c", PROGRAM, *TESTS]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
