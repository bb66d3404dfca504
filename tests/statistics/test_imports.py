"""What importing the statistics costs."""

from __future__ import annotations

import subprocess
import sys


def test_neither_torch_nor_scipy_stats_is_imported() -> None:
    code = (
        "import sys, advsweep.statistics; "
        "heavy = ('torch', 'scipy.special', 'scipy.stats', 'pandas'); "
        "sys.exit(any(name in sys.modules for name in heavy))"
    )
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0
