"""Takes away from a process what it does not need: resources, capabilities, other processes."""

from __future__ import annotations

import ctypes
import os
import resource
import signal
import sys
from collections.abc import Sequence

_PR_SET_PDEATHSIG, _PR_SET_DUMPABLE, _PR_CAPBSET_DROP, _PR_SET_CHILD_SUBREAPER = 1, 4, 24, 36
_PR_SET_NO_NEW_PRIVS, _PR_CAP_AMBIENT, _PR_CAP_AMBIENT_CLEAR_ALL = 38, 47, 4
_CAPABILITY_VERSION_3 = 0x20080522

# The numbers of these calls are the same on all architectures.
_LANDLOCK_CREATE_RULESET, _LANDLOCK_RESTRICT_SELF = 444, 446
_LANDLOCK_CREATE_RULESET_VERSION = 1
_LANDLOCK_ACCESS_FS_MAKE_BLOCK = 1 << 11
_LANDLOCK_SCOPES = 0b11  # abstract sockets and signals
_ABI_OF_SCOPES = 6

IS_LINUX = sys.platform == "linux"


def libc() -> ctypes.CDLL:
    """The functions of the C library; `ctypes.get_errno` has their errors."""
    return ctypes.CDLL(None, use_errno=True)


def checked(result: int, what: str) -> int:
    """The result of a function of the C library.

    Raises:
        OSError: it is -1.
    """
    if result == -1:
        number = ctypes.get_errno()
        raise OSError(number, f"{what}: {os.strerror(number)}")
    return result


def hide_memory() -> None:
    """Keeps processes of the same user from reading the memory and descriptors of this one."""
    if IS_LINUX:
        checked(libc().prctl(_PR_SET_DUMPABLE, 0, 0, 0, 0), "prctl")


def limit(limits: Sequence[tuple[str, int, int]]) -> None:
    """Sets limits of resources, by name, soft and hard limit."""
    for name, soft, hard in limits:
        resource.setrlimit(getattr(resource, f"RLIMIT_{name}"), (soft, hard))


def drop_capabilities() -> None:
    """Drops all capabilities, for what this process executes as well."""
    if not IS_LINUX:
        return
    prctl = libc().prctl
    checked(prctl(_PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0), "prctl")
    prctl(_PR_CAP_AMBIENT, _PR_CAP_AMBIENT_CLEAR_ALL, 0, 0, 0)
    capability = 0
    while prctl(_PR_CAPBSET_DROP, capability, 0, 0, 0) == 0:
        capability += 1
    header = (ctypes.c_uint32 * 2)(_CAPABILITY_VERSION_3, 0)
    nothing = (ctypes.c_uint32 * 6)()
    checked(libc().capset(header, nothing), "capset")


def leave_other_processes() -> None:
    """Where the kernel has Landlock: no reading, tracing or signals of processes outside."""
    if not IS_LINUX:
        return
    syscall = libc().syscall
    version = syscall(_LANDLOCK_CREATE_RULESET, None, 0, _LANDLOCK_CREATE_RULESET_VERSION)
    if version < 1:
        return
    # A domain has to forbid something; a program without capabilities makes no block devices.
    scopes = _LANDLOCK_SCOPES if version >= _ABI_OF_SCOPES else 0
    ruleset = (ctypes.c_uint64 * 3)(_LANDLOCK_ACCESS_FS_MAKE_BLOCK, 0, scopes)
    size = ctypes.sizeof(ruleset) if scopes else ctypes.sizeof(ctypes.c_uint64)
    domain = checked(syscall(_LANDLOCK_CREATE_RULESET, ruleset, size, 0), "landlock")
    checked(syscall(_LANDLOCK_RESTRICT_SELF, domain, 0), "landlock")
    os.close(domain)


def close_standard() -> None:
    """Lets the standard descriptors lead nowhere."""
    nowhere = os.open(os.devnull, os.O_RDWR)
    for standard in (0, 1, 2):
        os.dup2(nowhere, standard)
    os.close(nowhere)


def close_others(kept: Sequence[int]) -> None:
    """Closes all descriptors but the standard ones and some more."""
    first = 3
    for descriptor in sorted(kept):
        os.closerange(first, descriptor)
        first = descriptor + 1
    os.closerange(first, os.sysconf("SC_OPEN_MAX"))


def end_with_parent() -> None:
    """Has this process killed when its parent ends, unless it decides otherwise."""
    if IS_LINUX:
        checked(libc().prctl(_PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0), "prctl")


def adopt_orphans() -> None:
    """Makes this process the parent of descendants whose parents have ended."""
    if IS_LINUX:
        checked(libc().prctl(_PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0), "prctl")


def children() -> list[int]:
    """The children of this process, as far as the system tells."""
    try:
        with open(f"/proc/self/task/{os.getpid()}/children") as file:
            return [int(pid) for pid in file.read().split()]
    except FileNotFoundError:
        return []
