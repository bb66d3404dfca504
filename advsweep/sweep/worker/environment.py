"""Describes a run for the store: its parts, its process, and what that costs."""

from __future__ import annotations

import contextlib
import functools
import importlib.metadata
import json
import os
import platform
import resource
import sys
import time
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

import advsweep
from advsweep.components import Plain, as_node
from advsweep.machine import git_output, memory_bytes, processor_facts, processor_name
from advsweep.names import PROCESSOR, VECTOR_CAPABILITY
from advsweep.printable import redacted_arguments

if TYPE_CHECKING:
    from advsweep.backends.base import Run
    from advsweep.backends.work_clock import WorkClock
    from advsweep.store import NewRun, Store

# The environment variable with the user's command, without secrets, for workers.
COMMAND_VARIABLE = "ADVSWEEP_COMMAND"

# Seconds that all processes of a run took, evaluations included; its share of them where they
# trained other runs too.
RUN_SECONDS = "time/run"

# Bytes of memory that the largest process of a run held at once.
PEAK_MEMORY = "memory/peak"

_PACKAGES = ("torch", "numpy", "scipy", "sqlalchemy", "hydra-core", "transformers", "trl")


def kind_of_machine(environment: Mapping[str, Any] | None = None) -> str:
    """Return what decides how fast runs on processors are: their kind and number.

    Args:
        environment: that of a run; None: of this machine.
    """
    if environment is None:
        environment = {
            PROCESSOR: processor_facts(),
            "cpu": processor_name(),
            "cores": os.cpu_count(),
        }
    processor = as_node(environment.get(PROCESSOR))
    facts = {key: value for key, value in processor.items() if key != VECTOR_CAPABILITY}
    return json.dumps([environment.get("cpu"), environment.get("cores"), facts], sort_keys=True)


def describe_environment() -> Plain:
    """Returns the code's git state, package versions, the machine and the command.

    Secrets in the command are masked.
    """
    command = os.environ.get(COMMAND_VARIABLE, redacted_arguments(sys.argv))
    processor = {**processor_facts(), **_vector_capability()}
    return {**_of_this_process(), PROCESSOR: processor, "command": command}


def _vector_capability() -> dict[str, str]:
    """Returns which vector instructions torch uses here, such as AVX2.

    They decide in which order torch adds, and so the last bits of results. Empty in a process that
    has not loaded torch: nothing in it depends on them.
    """
    torch = sys.modules.get("torch")
    if torch is None:
        return {}
    return {VECTOR_CAPABILITY: torch.backends.cpu.get_cpu_capability()}


@functools.cache
def _of_this_process() -> Plain:
    """Returns what is constant for the process and its forks.

    Cached: the code is the one that was imported, even if its files change later.
    """
    folder = Path(advsweep.__file__).parent
    git = None
    commit = git_output(folder, "rev-parse", "HEAD")
    # The package of a wheel may lie in the checkout of another project.
    if commit and git_output(folder, "ls-files", "--error-unmatch", "__init__.py") is not None:
        git = {"commit": commit, "dirty": bool(git_output(folder, "status", "--porcelain"))}
    packages = {}
    for package in _PACKAGES:
        with contextlib.suppress(importlib.metadata.PackageNotFoundError):
            packages[package] = importlib.metadata.version(package)
    return {
        "advsweep": advsweep.__version__,
        "git": git,
        "python": platform.python_version(),
        "packages": packages,
        "platform": platform.platform(),
        "host": platform.node(),
        "cpu": processor_name(),
        "cores": os.cpu_count(),
        "memory_bytes": memory_bytes(),
    }


def new_run(run: Run, config: Plain) -> NewRun:
    """Return a planned run in the form that a store takes."""
    from advsweep.store import NewRun  # loads SQLAlchemy, which no description of executors needs

    return NewRun(
        identity=run.identity,
        config_hash=run.config_hash,
        seed=run.seed,
        config=config,
        steps=run.steps,
        estimator=run.estimator.name,
        backend=run.backend.name,
    )


class ProcessCosts:
    """Measures what this process costs and adds it to the summaries of its runs.

    Runs that are trained together share the time equally while they are in the process, so that
    their times add up to the time of the process. Each counts the memory of the whole process.

    Attributes:
        clock: what the time is spent on.
    """

    def __init__(self, run_ids: Iterable[int], clock: WorkClock) -> None:
        self.clock = clock
        # The process may have had other runs, whose peak does not count: Linux forgets it.
        with contextlib.suppress(OSError):
            Path("/proc/self/clear_refs").write_text("5")
        self._seconds = dict.fromkeys(run_ids, 0.0)
        self._divided = time.monotonic()

    def leave(self, run_id: int) -> float:
        """Takes a run out; returns its seconds, 0 if it was out before."""
        now = time.monotonic()
        for other in self._seconds:
            self._seconds[other] += (now - self._divided) / len(self._seconds)
        self._divided = now
        return self._seconds.pop(run_id, 0.0)

    def record(self, store: Store, run_id: int) -> None:
        """Takes a run out, and adds its costs to those of its earlier processes."""
        seconds = self.leave(run_id)
        # A run may be a command, or have processes of its own: the largest counts.
        earlier = store.metrics.summaries([run_id]).get(run_id, {})
        store.metrics.set_summaries(
            run_id,
            {
                RUN_SECONDS: earlier.get(RUN_SECONDS, 0.0) + seconds,
                PEAK_MEMORY: max(earlier.get(PEAK_MEMORY, 0.0), *map(float, _peaks())),
                **self.clock.summaries(),
            },
        )


def had_large_children() -> bool:
    """Return whether an ended child held more memory than this process."""
    process, largest_child = _peaks()
    return largest_child > process


def _peaks() -> tuple[int, int]:
    """Return the most memory that this process and its largest child held."""
    process = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    largest_child = resource.getrusage(resource.RUSAGE_CHILDREN).ru_maxrss
    # macOS counts bytes, other systems kilobytes.
    unit = 1 if sys.platform == "darwin" else 1024
    return process * unit, largest_child * unit
