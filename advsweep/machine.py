"""This machine: its cores, outputs of commands, kills by its kernel, and its network."""

from __future__ import annotations

import os
import socket
import subprocess
import urllib.request
from pathlib import Path
from urllib.parse import urlsplit

from advsweep.errors import reason_of

_VMSTAT = Path("/proc/vmstat")

_HOME = "https://huggingface.co"
_PORTS = {"http": 80, "https": 443}
_PATIENCE_SECONDS = 10.0


def usable_cores() -> list[int]:
    """Return the numbers of the cores that this process may use."""
    if hasattr(os, "sched_getaffinity"):
        return sorted(os.sched_getaffinity(0))
    return list(range(os.cpu_count() or 1))


def output_of(*command: str, seconds: float) -> str:
    """Return what a command prints.

    Raises:
        OSError: it cannot be started.
        subprocess.SubprocessError: it fails, or takes longer.
    """
    done = subprocess.run(command, capture_output=True, text=True, check=True, timeout=seconds)
    return done.stdout


def memory_kills() -> int:
    """Return how many processes the kernel has killed for lack of memory since boot.

    Kills by the memory limit of a container count as well. 0 on systems without /proc.
    """
    try:
        lines = _VMSTAT.read_text().splitlines()
    except OSError:
        return 0
    counts = (line.partition(" ") for line in lines)
    return next((int(count) for name, _, count in counts if name == "oom_kill"), 0)


def hub_unreachable() -> str:
    """Say why the Hugging Face hub cannot be reached; empty if it can be.

    Its own client tries again for 30 s.

    Empty also behind a proxy, which may reach what this process cannot, and if HF_HUB_OFFLINE is
    set, as the client then fails at once by itself.
    """
    endpoint = os.environ.get("HF_ENDPOINT") or _HOME
    place = urlsplit(endpoint)
    if (
        os.environ.get("HF_HUB_OFFLINE")
        or {place.scheme, "all"} & urllib.request.getproxies().keys()
    ):
        return ""
    port = place.port or _PORTS.get(place.scheme, 443)
    try:
        socket.create_connection((place.hostname, port), _PATIENCE_SECONDS).close()
    except OSError as error:
        return f"{endpoint} cannot be reached ({reason_of(error)})"
    return ""
