"""`advsweep doctor`: what it finds here, and what it says about what is missing or broken."""

from __future__ import annotations

import _ctypes
import json
import subprocess
import tomllib
from pathlib import Path

import pytest

from advsweep.cli.commands import doctor
from advsweep.cli.commands.doctor import FEATURES, Check, check_gpu, check_packages, check_store
from advsweep.store import open_store
from advsweep.sweep.executors.lock_files import Holder
from advsweep.sweep.executors.reservations import CorePool

PYPROJECT = Path(__file__).parents[2] / "pyproject.toml"


@pytest.fixture
def pretended(monkeypatch):
    """Pretends that advsweep requires something."""

    def pretend(*texts: str) -> None:
        monkeypatch.setattr("importlib.metadata.requires", lambda name: list(texts))

    return pretend


def done(out: str = "", code: int = 0, err: str = "") -> subprocess.CompletedProcess[str]:
    return subprocess.CompletedProcess([], code, out, err)


def torch_says(*devices: tuple[str, int], built: str | None = None) -> str:
    return json.dumps({"version": "2.13.0", "built": built, "devices": devices})


def test_every_extra_is_examined():
    extras = tomllib.loads(PYPROJECT.read_text())["project"]["optional-dependencies"]
    assert set(FEATURES) == set(extras) - {"bench", "dev", "docs"}


def test_missing_and_unfit_packages_have_their_pip_command(pretended):
    pretended(
        "numpy>=1; extra == 'ray'",
        "nothing-of-this-name[fast]>=2; extra == 'ray'",
        "scipy<0.1; extra == 'math'",
        "advsweep[ray]; extra == 'data'",
        "torch>=1",
    )
    check = check_packages("Ray", "use", "ray")
    assert check.state == "missing"
    assert check.detail == "use"
    assert check.remedy.endswith("'nothing-of-this-name[fast]>=2'")
    unfit = check_packages("Math", "use", "math")
    assert unfit.state == "unusable"
    assert unfit.detail.startswith("use: expected scipy<0.1, got ")
    assert unfit.remedy.endswith("'scipy<0.1'")


GPU = {
    "none": (done(torch_says(built="13.0")), "missing", "backends tiny and bandit need none"),
    "no CUDA": (done(torch_says()), "missing", "torch 2.13.0 is built without CUDA"),
    "one": (
        done(f"noise\n{torch_says(('H100', 80 * 2**30), built='13.0')}"),
        "ok",
        "H100 (80 GiB); torch 2.13.0",
    ),
    "crash": (done(code=-11), "unusable", "exit code -11"),
    "error": (
        done(code=1, err="Traceback\nImportError: libcuda\n"),
        "unusable",
        "ImportError: libcuda",
    ),
    "hang": (subprocess.TimeoutExpired("torch", 1), "unusable", "did not answer"),
}


@pytest.mark.parametrize("case", GPU)
def test_what_torch_says_of_gpus(monkeypatch, case):
    answer, state, word = GPU[case]

    def run(command, **_):
        if isinstance(answer, Exception):
            raise answer
        return answer

    monkeypatch.setattr(subprocess, "run", run)
    check = check_gpu()
    assert check.state == state
    assert word in check.detail


@pytest.fixture
def torch_folder(tmp_path, monkeypatch):
    """A torch that can be looked at, and that says no more than that it was imported."""
    folder = tmp_path / "torch"
    (folder / "lib").mkdir(parents=True)
    (folder / "__init__.py").write_text("raise ImportError('torch was imported')\n")
    (folder / "version.py").write_text("__version__ = '2.9'\ncuda = None\nhip = None\n")
    (folder / "lib" / "libtorch_python.so").symlink_to(_ctypes.__file__)
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))
    return folder


def test_a_torch_without_cuda_is_not_imported(torch_folder):
    check = check_gpu()
    assert check.state == "missing"
    assert check.detail.endswith("torch 2.9 is built without CUDA")


ASKED = {
    "another build": ("version.py", "__version__ = '2.9'\nhip = '6.4'\n"),
    "no version": ("version.py", None),
    "no library": ("lib/libtorch_python.so", None),
    "a broken library": ("lib/libtorch_python.so", "no library"),
}


@pytest.mark.parametrize("case", ASKED)
def test_a_torch_that_may_have_a_gpu_or_is_broken_is_asked_itself(torch_folder, case):
    name, content = ASKED[case]
    file = torch_folder / name
    file.unlink()
    if content is not None:
        file.write_text(content)
    check = check_gpu()
    assert check.state == "unusable"
    assert check.detail.endswith("ImportError: torch was imported")


def test_slurm_needs_its_commands(monkeypatch, pretended):
    pretended("numpy; extra == 'slurm'")
    there = {"sbatch"}
    monkeypatch.setattr("shutil.which", lambda name: name if name in there else None)
    assert "lacks squeue, scancel" in check_packages("Slurm", "use", "slurm").detail
    there |= {"squeue", "scancel"}
    assert check_packages("Slurm", "use", "slurm").state == "ok"


def test_store_is_named_and_a_damaged_one_is_unusable(tmp_path):
    url = str(tmp_path / "advsweep.db")
    assert check_store(url).state == "ok"
    assert not (tmp_path / "advsweep.db").exists()
    open_store(url).close()
    assert "schema" in check_store(url).detail
    (tmp_path / "advsweep.db").write_text("no database")
    assert check_store(url).state == "unusable"


def test_password_of_a_server_is_not_shown(monkeypatch, in_process):
    monkeypatch.setattr(doctor, "check_gpu", lambda: Check("GPU", "missing", "none"))
    code, out, err = in_process(
        "doctor", "--store", "postgresql://me:hunter2@127.0.0.1:1/runs", "--format", "json"
    )
    assert code == 0
    assert "hunter2" not in out + err
    states = {check["name"]: check["state"] for check in json.loads(out)["checks"]}
    assert states["store"] == "unusable"
    assert {"machine", "packages", "GPU", "vLLM", "Slurm", "sandbox"} <= states.keys()


def test_hostile_message_of_torch_is_printed_escaped(monkeypatch, in_process):
    hostile = Check("GPU", "unusable", "\x1b]52;c;ZXZpbA==\x07\nFORGED", "\x1b[2J")
    monkeypatch.setattr(doctor, "check_gpu", lambda: hostile)
    code, out, _ = in_process("doctor")
    assert code == 0
    assert "\x1b" not in out
    assert "\\x1b" in out
    assert not [line for line in out.splitlines() if line.startswith("FORGED")]


def test_what_is_ready_comes_first_and_what_is_optional_last(monkeypatch, in_process):
    monkeypatch.setattr(doctor, "check_gpu", lambda: Check("GPU", "missing", "of no need"))
    monkeypatch.setattr(doctor, "check_sandbox", lambda: Check("sandbox", "unusable", "odd", "do"))
    code, out, _ = in_process("doctor")
    assert code == 0
    places = [out.index(heading) for heading in doctor.HEADINGS.values()]
    assert places == sorted(places)
    assert places[0] < out.index("  machine ") < places[1] < out.index("  sandbox ")
    assert places[2] < out.index("  GPU ") < out.index("How to get them:")


def test_who_has_what_is_said_and_why_nothing_can_be_reserved(tmp_path, monkeypatch):
    check = doctor.check_reservations()
    assert (check.state, "nothing is in use" in check.detail) == ("ok", True)
    cores = CorePool()
    run = cores.take(range(4), 2, only_free=True)
    assert run is not None
    cores.describe(run, Holder.current(pid=4242, run=7, sweep="demo"))
    assert "2 cores: run 7 of sweep demo (pid 4242, " in doctor.check_reservations().detail
    monkeypatch.setenv("ADVSWEEP_RUNTIME", str(tmp_path / "file"))
    (tmp_path / "file").write_text("")
    check = doctor.check_reservations()
    assert check.state == "unusable"
    assert "expected a place for locks" in check.detail
