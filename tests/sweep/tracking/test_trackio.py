"""Projects and folders of trackio; tests/sweep/tracking/test_contract.py reads runs back."""

from __future__ import annotations

import os
import subprocess
import sys

import pytest

from advsweep.errors import ConfigError
from advsweep.sweep.tracking.trackio import TrackioTracking


@pytest.mark.parametrize("project", ["", "a b", "../x", "a/b", "x" * 65])
def test_a_project_is_a_plain_name(project):
    with pytest.raises(ConfigError, match=r"tracking\.project"):
        TrackioTracking(project=project)


@pytest.mark.slow
def test_a_process_has_one_folder(tmp_path):
    """trackio reads its folder from the environment when it is imported, in a new process."""
    program = (
        "from pathlib import Path\n"
        "from advsweep.sweep.tracking.trackio import _load_storage\n"
        "import os\n"
        f"storage = _load_storage(Path({str(tmp_path / 'one')!r}))\n"
        f"assert str(storage.get_project_db_path('p')) == {str(tmp_path / 'one' / 'p.db')!r}\n"
        "assert 'TRACKIO_DIR' not in os.environ\n"
        f"_load_storage(Path({str(tmp_path / 'two')!r}))\n"
    )
    environment = {key: value for key, value in os.environ.items() if key != "TRACKIO_DIR"}
    done = subprocess.run(
        [sys.executable, "-c", program],
        capture_output=True,
        text=True,
        check=False,
        env=environment,
        cwd=tmp_path,
    )
    assert done.returncode == 1
    assert "trackio has one folder per process" in done.stderr
