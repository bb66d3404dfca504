"""Where and with what a run was made: code, versions and hardware."""

from __future__ import annotations

import functools
import importlib.metadata
import os
import platform
import subprocess
import sys
from pathlib import Path

import advsweep
from advsweep.components import Plain
from advsweep.redaction import redacted_arguments

COMMAND_VARIABLE = "ADVSWEEP_COMMAND"
"""Through it an executor passes to its workers what the user typed, without secrets."""

_PACKAGES = ("torch", "numpy", "scipy", "sqlalchemy", "hydra-core", "transformers", "trl")


def describe_environment() -> Plain:
    """The code's git state, versions of what computes, the machine and the command.

    Secrets in the command are masked.
    """
    command = os.environ.get(COMMAND_VARIABLE, redacted_arguments(sys.argv))
    return {**_of_this_process(), "command": command}


@functools.cache
def _of_this_process() -> Plain:
    """What stays as it is while the process lives, and in all that are forked from it.

    The code is the one that was imported, whatever has happened to its files since.
    """
    return {
        "advsweep": advsweep.__version__,
        "git": _git_state(Path(advsweep.__file__).parent),
        "python": platform.python_version(),
        "packages": _versions(),
        "platform": platform.platform(),
        "host": platform.node(),
        "cpu": _cpu_model(),
        "cores": os.cpu_count(),
        "memory_bytes": os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES"),
    }


def _versions() -> dict[str, str]:
    found = {}
    for package in _PACKAGES:
        try:
            found[package] = importlib.metadata.version(package)
        except importlib.metadata.PackageNotFoundError:
            continue
    return found


def _git_state(directory: Path) -> Plain | None:
    """Commit and dirtiness of the checkout that holds the package; None for a wheel."""
    commit = _git(directory, "rev-parse", "HEAD")
    if commit is None or _git(directory, "ls-files", "--error-unmatch", "__init__.py") is None:
        return None
    return {"commit": commit, "dirty": bool(_git(directory, "status", "--porcelain"))}


def _git(directory: Path, *arguments: str) -> str | None:
    try:
        done = subprocess.run(
            ["git", "--no-optional-locks", "-C", str(directory), *arguments],
            capture_output=True,
            text=True,
            check=False,
            timeout=10,
        )
    except (OSError, subprocess.TimeoutExpired):
        return None
    return done.stdout.strip() if done.returncode == 0 else None


def _cpu_model() -> str:
    try:
        lines = Path("/proc/cpuinfo").read_text(encoding="utf-8").splitlines()
    except OSError:
        return platform.processor()
    models = (line.partition(":")[2].strip() for line in lines if line.startswith("model name"))
    return next(models, platform.processor())
