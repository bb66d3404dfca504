"""This machine: processor, memory, outputs of commands, git, kills by its kernel, its network."""

from __future__ import annotations

import hashlib
import os
import platform
import socket
import subprocess
import urllib.request
from collections.abc import Mapping, Sequence
from pathlib import Path
from urllib.parse import urlsplit

from advsweep.errors import reason_of

_CPUINFO = Path("/proc/cpuinfo")
_VMSTAT = Path("/proc/vmstat")

# What Linux calls the facts about a processor, on x86 and on ARM.
_PROCESSOR_LABELS = {
    "vendor": ("vendor_id", "CPU implementer"),
    "family": ("cpu family", "CPU architecture"),
    "model": ("model", "CPU part"),
    "stepping": ("stepping", "CPU revision"),
}

_HOME = "https://huggingface.co"
_PORTS = {"http": 80, "https": 443}
_PATIENCE_SECONDS = 10.0


def usable_cores() -> list[int]:
    """Return the numbers of the cores that this process may use."""
    if hasattr(os, "sched_getaffinity"):
        return sorted(os.sched_getaffinity(0))
    return list(range(os.cpu_count() or 1))


def memory_bytes() -> int:
    """Return the memory of this machine."""
    return os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")


def processor_name() -> str:
    """Return the name of this machine's processor; empty where the system gives none."""
    return _cpu_lines().get("model name", platform.processor())


def processor_facts() -> dict[str, str]:
    """Return what tells processors of one name apart.

    Returns:
        `vendor`, `family`, `model` and `stepping` of the first core, as Linux writes them: numbers
        on x86, hexadecimal codes on ARM. Those that the system does not give are left out, and so
        are all of them on other systems.
    """
    lines = _cpu_lines()
    facts = {}
    for fact, labels in _PROCESSOR_LABELS.items():
        given = [lines[label] for label in labels if label in lines]
        if given:
            facts[fact] = given[0]
    return facts


def _cpu_lines() -> Mapping[str, str]:
    """Return the lines of the first core in /proc/cpuinfo, by label; none on other systems."""
    try:
        text = _CPUINFO.read_text(encoding="utf-8")
    except OSError:
        return {}
    first_core = text.partition("\n\n")[0]
    pairs = (line.partition(":") for line in first_core.splitlines())
    return {label.strip(): value.strip() for label, _, value in pairs}


# The environment variable with the descriptors that keep the GPUs of a run reserved.
RESERVED_VARIABLE = "ADVSWEEP_RESERVED"


def reserved_variables(descriptors: Sequence[int]) -> dict[str, str]:
    """Return the variables that tell a process which inherited descriptors reserve its GPUs."""
    return {RESERVED_VARIABLE: ",".join(map(str, descriptors))}


def reserved_descriptors() -> tuple[int, ...]:
    """Return the descriptors that keep the GPUs of this process reserved.

    A process that it starts, uses the GPUs and may outlive it has to inherit them.
    """
    listed = os.environ.get(RESERVED_VARIABLE, "").split(",")
    descriptors = [int(text) for text in listed if text.isdecimal()]
    return tuple(number for number in descriptors if _is_open(number))


def _is_open(descriptor: int) -> bool:
    try:
        os.fstat(descriptor)
    except OSError:
        return False
    return True


def output_of(*command: str, seconds: float) -> str:
    """Return what a command prints.

    Raises:
        OSError: it cannot be started.
        subprocess.SubprocessError: it fails, or takes longer.
    """
    done = subprocess.run(
        command, capture_output=True, check=True, errors="surrogateescape", timeout=seconds
    )
    return done.stdout


# Files that git does not know and that count as changes of a program: code and settings. What a
# training writes into the same folder does not.
_CODE = frozenset(
    {
        ".c",
        ".cc",
        ".cfg",
        ".cpp",
        ".cu",
        ".go",
        ".h",
        ".hpp",
        ".ini",
        ".ipynb",
        ".java",
        ".jl",
        ".js",
        ".lua",
        ".pl",
        ".py",
        ".pyx",
        ".r",
        ".rs",
        ".sh",
        ".toml",
        ".ts",
        ".yaml",
        ".yml",
    }
)
_GIT_SECONDS = 10.0


def git_output(folder: Path, *arguments: str) -> str | None:
    """Return what git prints in a folder; None if it fails or is not installed."""
    # A repository may name programs that git then starts.
    safe = ("-c", "core.fsmonitor=false", "-c", "core.hooksPath=/dev/null")
    command = ("git", "--no-optional-locks", *safe, "-C", str(folder), *arguments)
    try:
        return output_of(*command, seconds=_GIT_SECONDS).strip("\n")
    except (OSError, ValueError, subprocess.SubprocessError):
        return None


def git_state(folder: Path) -> dict[str, object] | None:
    """Return the state of the repository that a folder belongs to.

    Returns:
        `commit`, None before the first; `dirty`, whether code differs from it; `diff`, the
        sha256, in hex, of these differences, None without any: those of tracked files, and the
        code and settings among the files that git neither tracks nor ignores. None without a
        repository.
    """
    top = git_output(folder, "rev-parse", "--show-toplevel")
    if not top:
        return None
    root = Path(top)
    commit = git_output(root, "rev-parse", "--verify", "-q", "HEAD")
    material = hashlib.sha256()
    options = ("--no-ext-diff", "--no-textconv", "--full-index", "--no-color")
    changes = git_output(root, "diff", *options, "HEAD") if commit else ""
    material.update((changes or "").encode(errors="surrogateescape"))
    untracked = git_output(root, "ls-files", "--others", "--exclude-standard", "-z") or ""
    names = [n for n in sorted(untracked.split("\0")) if Path(n).suffix.lower() in _CODE]
    for name in names:
        try:
            content = (root / name).read_bytes()
        except OSError:
            continue  # a link that leads nowhere
        material.update(f"\0{name}\0{hashlib.sha256(content).hexdigest()}".encode())
    is_dirty = bool(changes or names)
    return {"commit": commit, "dirty": is_dirty, "diff": material.hexdigest() if is_dirty else None}


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
    address = urlsplit(endpoint)
    if (
        os.environ.get("HF_HUB_OFFLINE")
        or {address.scheme, "all"} & urllib.request.getproxies().keys()
    ):
        return ""
    port = address.port or _PORTS.get(address.scheme, 443)
    try:
        socket.create_connection((address.hostname, port), _PATIENCE_SECONDS).close()
    except OSError as error:
        return f"{endpoint} cannot be reached ({reason_of(error)})"
    return ""
