"""Isolates a process: limits of resources, no capabilities, own files and processes.

`enter_root` gives the process its own root folder: system and Python read-only, a small scratch
folder, nothing else. It must run in user, mount and process namespaces of `unshare`, with all
capabilities. Other folders do not exist in the new root: neither home folders and data nor the
sockets below /run, /var and /tmp.
"""

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

SCRATCH = "/tmp"
"""The only writable folder."""

_SYSTEM = (
    *("/usr", "/bin", "/sbin", "/lib", "/lib32", "/lib64", "/libx32", "/nix/store", "/gnu/store"),
    *("/etc/ld.so.cache", "/etc/ld.so.conf", "/etc/ld.so.conf.d", "/etc/alternatives"),
    *("/etc/localtime",),
)
_DEVICES = ("null", "zero", "full", "random", "urandom")
_LINKS = {
    "/dev/shm": SCRATCH,
    "/var/tmp": SCRATCH,
    "/dev/fd": "/proc/self/fd",
    **{f"/dev/std{name}": f"/proc/self/fd/{n}" for n, name in enumerate(("in", "out", "err"))},
}
_USER_NAMESPACES = "/proc/sys/user/max_user_namespaces"

_CLONE_NEWNS, _CLONE_NEWIPC, _CLONE_NEWPID = 0x00020000, 0x08000000, 0x20000000
_MS_RDONLY, _MS_NOSUID, _MS_NODEV, _MS_NOEXEC, _MS_BIND, _MS_REC = 1, 2, 4, 8, 4096, 16384
_MNT_DETACH = 2
_MOUNT_SETATTR, _SYS_PIVOT_ROOT = 442, {"x86_64": 155, "aarch64": 41}
_AT_FDCWD, _AT_RECURSIVE = -100, 0x8000
_MOUNT_ATTR_RDONLY, _MOUNT_ATTR_NOSUID = 1, 2

IS_LINUX = sys.platform == "linux"


def libc() -> ctypes.CDLL:
    """Return the functions of the C library; `ctypes.get_errno` has their errors."""
    return ctypes.CDLL(None, use_errno=True)


def checked(result: int, what: str) -> int:
    """Return the result of a function of the C library.

    Raises:
        OSError: the result is -1.
    """
    if result == -1:
        number = ctypes.get_errno()
        raise OSError(number, f"{what}: {os.strerror(number)}")
    return result


def hide_memory() -> None:
    """Forbid other processes of the user to read this process's memory and descriptors."""
    if IS_LINUX:
        checked(libc().prctl(_PR_SET_DUMPABLE, 0, 0, 0, 0), "prctl")


def limit(limits: Sequence[tuple[str, int, int]]) -> None:
    """Set resource limits, each a name with a soft and a hard limit."""
    for name, soft, hard in limits:
        resource.setrlimit(getattr(resource, f"RLIMIT_{name}"), (soft, hard))


def drop_capabilities() -> None:
    """Drop all capabilities, also for programs that this process executes."""
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
    """With Landlock in the kernel: forbid to read, trace or signal other processes."""
    if not IS_LINUX:
        return
    syscall = libc().syscall
    version = syscall(_LANDLOCK_CREATE_RULESET, None, 0, _LANDLOCK_CREATE_RULESET_VERSION)
    if version < 1:
        return
    # A ruleset must forbid something. Block devices are harmless to forbid, because a program
    # without capabilities cannot make them.
    scopes = _LANDLOCK_SCOPES if version >= _ABI_OF_SCOPES else 0
    ruleset = (ctypes.c_uint64 * 3)(_LANDLOCK_ACCESS_FS_MAKE_BLOCK, 0, scopes)
    size = ctypes.sizeof(ruleset) if scopes else ctypes.sizeof(ctypes.c_uint64)
    domain = checked(syscall(_LANDLOCK_CREATE_RULESET, ruleset, size, 0), "landlock")
    checked(syscall(_LANDLOCK_RESTRICT_SELF, domain, 0), "landlock")
    os.close(domain)


def close_standard() -> None:
    """Redirect the standard descriptors to /dev/null."""
    nowhere = os.open(os.devnull, os.O_RDWR)
    for standard in (0, 1, 2):
        os.dup2(nowhere, standard)
    os.close(nowhere)


def close_others(kept: Sequence[int]) -> None:
    """Close all descriptors except the standard ones and those in `kept`."""
    first = 3
    for descriptor in sorted(kept):
        os.closerange(first, descriptor)
        first = descriptor + 1
    os.closerange(first, os.sysconf("SC_OPEN_MAX"))


def end_with_parent() -> None:
    """Let the kernel kill this process when its parent ends."""
    if IS_LINUX:
        checked(libc().prctl(_PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0), "prctl")


def adopt_orphans() -> None:
    """Make this process the parent of descendants whose parents have ended."""
    if IS_LINUX:
        checked(libc().prctl(_PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0), "prctl")


def children() -> list[int]:
    """Return the children of this process; empty if the system does not list them."""
    try:
        with open(f"/proc/self/task/{os.getpid()}/children") as file:
            return [int(pid) for pid in file.read().split()]
    except FileNotFoundError:
        return []


def enter_root(python: Sequence[str], hidden: Sequence[str]) -> None:
    """Make the new root and enter it.

    Args:
        python: folders of the interpreter and its packages.
        hidden: folders that stay empty where a system folder contains them, such as homes.

    Raises:
        OSError: the system does not allow it.
    """
    with open(_USER_NAMESPACES, "w") as file:
        file.write("0")  # a new namespace would give a program capabilities again
    places = {path: os.path.realpath(path) for path in (*_SYSTEM, *python)}
    links = {path: os.readlink(path) for path in _SYSTEM if os.path.islink(path)}
    small = "mode=755,size=1m,nr_inodes=4k"
    _mount("tmpfs", "/tmp", "tmpfs", _MS_NOSUID | _MS_NODEV, small)
    os.chdir("/tmp")
    os.mkdir("old")
    os.mkdir("new")
    _pivot_root(".", "old")
    os.chdir("/")
    _mount("tmpfs", "/new", "tmpfs", _MS_NOSUID | _MS_NODEV, small)
    for path in _SYSTEM:
        if path in links and not path.startswith("/etc/"):
            os.symlink(links[path], f"/new{path}")
        else:
            _bind(places[path], path)
    for path in hidden:
        if os.path.isdir(f"/new{path}"):
            _mount("tmpfs", f"/new{path}", "tmpfs", _MS_NOSUID | _MS_NODEV, small)
    for path in python:
        _bind(places[path], path)
        _bind(places[path], places[path])
    for name in _DEVICES:
        _bind(f"/dev/{name}", f"/dev/{name}")
    for path in (SCRATCH, "/proc", "/run", "/var"):
        os.makedirs(f"/new{path}", exist_ok=True)
    for path, target in _LINKS.items():
        os.symlink(target, f"/new{path}")
    _make_read_only("/new")
    _mount_proc("/new/proc")
    os.chdir("/new")
    _pivot_root(".", ".")
    checked(libc().umount2(b".", _MNT_DETACH), "umount")
    os.chdir("/")


def enter_scratch(size: int, files: int) -> None:
    """Make an empty scratch folder and use it as working folder of this process.

    Args:
        size: largest total size of all files in bytes.
        files: largest number of files and folders.
    """
    checked(libc().unshare(_CLONE_NEWNS | _CLONE_NEWIPC), "unshare")
    mode = f"mode=777,size={size},nr_inodes={files}"
    _mount("tmpfs", SCRATCH, "tmpfs", _MS_NOSUID | _MS_NODEV, mode)
    os.chdir(SCRATCH)


def separate_children() -> None:
    """Put the next process that this one forks into a new process namespace."""
    checked(libc().unshare(_CLONE_NEWPID), "unshare")


def see_own_processes() -> None:
    """Mount the /proc of this process's namespace, for it and its children alone."""
    checked(libc().unshare(_CLONE_NEWNS), "unshare")
    _mount_proc("/proc")


def _bind(source: str, path: str) -> None:
    """Bind a path of the old root into the new one, if it exists."""
    source, target = f"/old{source}", f"/new{path}"
    if not os.path.exists(source) or os.path.exists(target):
        return
    if os.path.isdir(source):
        os.makedirs(target)
    else:
        os.makedirs(os.path.dirname(target), exist_ok=True)
        open(target, "w").close()
    _mount(source, target, None, _MS_BIND | _MS_REC)


def _mount_proc(path: str) -> None:
    _mount("proc", path, "proc", _MS_RDONLY | _MS_NOSUID | _MS_NODEV | _MS_NOEXEC)


def _mount(source: str, path: str, kind: str | None, flags: int, options: str = "") -> None:
    arguments = (text and text.encode() for text in (source, path, kind))
    result = libc().mount(*arguments, ctypes.c_ulong(flags), options.encode())
    checked(result, f"mount {path}")


def _make_read_only(path: str) -> None:
    """Make all mounts below a path read-only; needs Linux 5.12."""
    attributes = (ctypes.c_uint64 * 4)(_MOUNT_ATTR_RDONLY | _MOUNT_ATTR_NOSUID)
    size = ctypes.c_size_t(ctypes.sizeof(attributes))
    result = libc().syscall(
        _MOUNT_SETATTR, _AT_FDCWD, path.encode(), _AT_RECURSIVE, attributes, size
    )
    checked(result, "mount_setattr")


def _pivot_root(new: str, old: str) -> None:
    number = _SYS_PIVOT_ROOT.get(os.uname().machine)
    if number is None:
        raise OSError(f"pivot_root is not known on {os.uname().machine}")
    checked(libc().syscall(number, new.encode(), old.encode()), "pivot_root")
