"""Stand-ins for a worker and for nvidia-smi, and jobs to give out."""

from __future__ import annotations

import sys

import pytest

from advsweep.sweep.executors.base import Job

WORKER = """
import json, os, sys, time

results = int(sys.argv[4]) if len(sys.argv) > 4 else None
for line in sys.stdin:
    job = json.loads(line)
    told = {"ADVSWEEP_STORE", "CUDA_VISIBLE_DEVICES", "OMP_NUM_THREADS"}
    found = {
        "job": job,
        "pid": os.getpid(),
        "parent": os.getppid(),
        "session": os.getsid(0) == os.getpid(),
        "arguments": sys.argv,
        "environment": {k: v for k, v in os.environ.items() if k in told},
    }
    with open(job["log"], "a") as log:
        log.write(json.dumps(found) + "\\n")
    if os.environ.get("DOES") == "stay":
        time.sleep(120)
    if job["runs"][0] >= 90 or results is None:
        sys.exit(12)
    os.write(results, b"0\\n")
"""

NVIDIA_SMI = """#!/bin/sh
echo "GPU-aaaa, 40960, $(cat "$(dirname "$0")/free")"
echo "GPU-bbbb, 40960, 40000"
"""


@pytest.fixture
def stand_in(tmp_path, monkeypatch):
    """An interpreter that runs the stand-in where it is told to run a worker.

    The stand-in does jobs of runs below 90 well, and fails at others.
    """
    module = tmp_path / "stand_in.py"
    module.write_text(WORKER)
    script = tmp_path / "python"
    script.write_text(
        f'#!/bin/sh\n[ "$3" = advsweep.sweep.worker.main ] && exec {sys.executable} {module} "$@"\n'
        f'exec {sys.executable} "$@"\n'
    )
    script.chmod(0o755)
    monkeypatch.setattr(sys, "executable", str(script))


@pytest.fixture
def free_memory(tmp_path, monkeypatch):
    """Two GPUs as nvidia-smi tells; sets how many MiB are free of the first."""
    folder = tmp_path / "smi"
    folder.mkdir()

    def set_free(mebibytes):
        (folder / "free").write_text(str(mebibytes))

    set_free(40000)
    (folder / "nvidia-smi").write_text(NVIDIA_SMI)
    (folder / "nvidia-smi").chmod(0o755)
    monkeypatch.setenv("PATH", str(folder), prepend=":")
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
    return set_free


@pytest.fixture
def job(tmp_path):
    """Jobs by the number of their run; the store is there in name alone."""

    def make(run_id):
        url = "postgresql://user:secret@host/runs"
        settings = {"name": "standard", "n": 4}
        directory = tmp_path / "runs" / str(run_id)
        return Job(run_id=run_id, store_url=url, directory=directory, evaluations=(settings,))

    return make
