"""Isolates a process: limits of resources, no capabilities, forbidden calls, own files.

`enter_root` gives the process its own root folder: system and Python read-only, a small scratch
folder, nothing else. It must run in user, mount and process namespaces of `unshare`, with all
capabilities. Other folders do not exist in the new root: neither home folders and data nor the
sockets below /run, /var and /tmp.
"""

from __future__ import annotations

import ctypes
import errno
import functools
import os
import resource
import signal
import struct
import sys
from collections.abc import Sequence
from typing import Any

_PR_SET_PDEATHSIG = 1
_PR_SET_DUMPABLE = 4
_PR_SET_SECCOMP = 22
_PR_CAPBSET_DROP = 24
_PR_SET_CHILD_SUBREAPER = 36
_PR_SET_NO_NEW_PRIVS = 38
_PR_CAP_AMBIENT = 47
_PR_CAP_AMBIENT_CLEAR_ALL = 4
_SECCOMP_MODE_FILTER = 2
_CAPABILITY_VERSION_3 = 0x20080522

# System calls that fail in a sandbox, with their numbers on x86-64 and on 64-bit ARM. They leave
# something behind (keys, System V IPC), take memory that no limit counts, lock files of others,
# read or change other processes of the user, or reach much of the kernel and serve no test.
_FORBIDDEN = """
    add_key 248 217, request_key 249 218, keyctl 250 219,
    shmget 29 194, semget 64 190, msgget 68 186, mq_open 240 180,
    memfd_create 319 279, memfd_secret 447 447, flock 73 32,
    ptrace 101 117, process_vm_readv 310 270, process_vm_writev 311 271, kcmp 312 272,
    pidfd_getfd 438 438, pidfd_send_signal 424 424, process_madvise 440 440,
    migrate_pages 256 238, move_pages 279 239, setpriority 141 140, ioprio_set 251 30,
    sched_setparam 142 118, sched_setscheduler 144 119, sched_setattr 314 274,
    sched_setaffinity 203 122, tkill 200 130, rt_tgsigqueueinfo 297 240,
    io_uring_setup 425 425, io_uring_enter 426 426, io_uring_register 427 427,
    userfaultfd 323 282, perf_event_open 298 241, bpf 321 280
"""
_PRLIMIT = (302, 261)
_KILL = (62, 129)
_TGKILL = (234, 131)
_QUEUE = (129, 138)
_SOCKET = (41, 198)
_FCNTL = (72, 25)
_IOCTL = (16, 29)
_AUDIT_ARCHITECTURES = {"x86_64": 0xC000003E, "aarch64": 0xC00000B7}
_X32 = 0x40000000  # calls from this number on are another interface to the same calls
_SOCKETS = (1, 2, 10, 16)  # AF_UNIX, AF_INET, AF_INET6, AF_NETLINK
_SIGNALS = (8, 10, 15, 1024, 1026)  # F_SETOWN, F_SETSIG, F_SETOWN_EX, F_SETLEASE, F_NOTIFY
_SOCKET_OWNERS = (0x8901, 0x8902)  # FIOSETOWN, SIOCSPGRP
_JOIN_SESSION_KEYRING = 1  # KEYCTL_JOIN_SESSION_KEYRING
_ALLOW, _DENY = 0x7FFF0000, 0x00050000 | errno.EPERM  # SECCOMP_RET_ALLOW, SECCOMP_RET_ERRNO
_LOAD, _EQUAL, _AT_LEAST, _RETURN = 0x20, 0x15, 0x35, 0x06  # BPF instructions
_STEP = struct.Struct("=HBBI")
_OWN_PROCESS = struct.pack("=I", 0x7EADBEEF)  # larger than the number of any process

# The numbers of these calls are the same on all architectures.
_LANDLOCK_CREATE_RULESET = 444
_LANDLOCK_ADD_RULE = 445
_LANDLOCK_RESTRICT_SELF = 446
_LANDLOCK_EXECUTE = 1 << 0
_LANDLOCK_READ_FILE = 1 << 2
_LANDLOCK_READ_DIR = 1 << 3
_LANDLOCK_READ = _LANDLOCK_EXECUTE | _LANDLOCK_READ_FILE | _LANDLOCK_READ_DIR
_LANDLOCK_TRUNCATE = 1 << 14
_LANDLOCK_WRITE_FILES = (1 << 1) | _LANDLOCK_TRUNCATE  # the rights to write that files have
_LANDLOCK_WRITE = 0b1_1111_1111_0010  # to write and remove files, to make them of any kind
_LANDLOCK_SCOPES = 0b11  # abstract sockets and signals
_LANDLOCK_ABI = {"refer": 2, "truncate": 3, "scopes": 6}

# The only writable folder in namespaces, unless Python or its packages lie in it.
_SCRATCH = "/tmp"
_OTHER_SCRATCH = "/scratch"

_SYSTEM = (
    "/usr",
    "/bin",
    "/sbin",
    "/lib",
    "/lib32",
    "/lib64",
    "/libx32",
    "/nix/store",
    "/gnu/store",
    "/etc/ld.so.cache",
    "/etc/ld.so.conf",
    "/etc/ld.so.conf.d",
    "/etc/alternatives",
    "/etc/localtime",
)
# What else programs read without namespaces: names, network settings, the kernel's state.
_SETTINGS = (
    "/etc/passwd",
    "/etc/group",
    "/etc/nsswitch.conf",
    "/etc/hosts",
    "/etc/resolv.conf",
    "/etc/host.conf",
    "/etc/gai.conf",
    "/etc/services",
    "/etc/protocols",
    "/etc/mime.types",
    "/etc/ssl/openssl.cnf",
    "/etc/ssl/certs",
    "/etc/pki/tls/openssl.cnf",
    "/etc/localtime",
    "/etc/timezone",
)
_STATE = ("/proc", "/sys/devices/system/cpu", "/sys/fs/cgroup")
_DEVICES = ("null", "zero", "full", "random", "urandom")
_LINKS_TO_SCRATCH = ("/dev/shm", "/var/tmp")
_LINKS = {
    "/dev/fd": "/proc/self/fd",
    **{f"/dev/std{name}": f"/proc/self/fd/{n}" for n, name in enumerate(("in", "out", "err"))},
}
_USER_NAMESPACES = "/proc/sys/user/max_user_namespaces"

_CLONE_NEWNS = 0x00020000
_CLONE_NEWPID = 0x20000000
_MS_RDONLY = 1
_MS_NOSUID = 2
_MS_NODEV = 4
_MS_NOEXEC = 8
_MS_BIND = 4096
_MS_REC = 16384
_MNT_DETACH = 2
_MOUNT_SETATTR = 442
_SYS_PIVOT_ROOT = {"x86_64": 155, "aarch64": 41}
_AT_FDCWD = -100
_AT_RECURSIVE = 0x8000
_MOUNT_ATTR_RDONLY = 1
_MOUNT_ATTR_NOSUID = 2

_LIBC = ctypes.CDLL(None, use_errno=True)


def _call(function: str, *arguments: Any) -> int:
    """Call a function of the C library.

    Raises:
        OSError: the result is -1.
    """
    result: int = getattr(_LIBC, function)(*arguments)
    if result == -1:
        number = ctypes.get_errno()
        raise OSError(number, f"{function}: {os.strerror(number)}")
    return result


def _prctl(*arguments: Any) -> None:
    if sys.platform == "linux":
        _call("prctl", *arguments, *[ctypes.c_ulong(0)] * (5 - len(arguments)))


def hide_memory() -> None:
    """Forbid other processes of the user to read this process's memory and descriptors."""
    _prctl(_PR_SET_DUMPABLE, 0)


def show_memory() -> None:
    """Take back `hide_memory`, as for a program that another one has just started."""
    _prctl(_PR_SET_DUMPABLE, 1)


def end_with_parent(parent: int) -> None:
    """Let the kernel kill this process when its parent ends.

    Args:
        parent: number of the process that forked this one.
    """
    _prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)  # not inherited: each process asks for itself
    # A parent that had ended before sends no signal. One outside the process namespace is 0.
    if os.getppid() not in (0, parent):
        os._exit(1)


def fork() -> int:
    """Fork like `os.fork`; the child ends with this process, or at once where it cannot ask to."""
    parent = os.getpid()
    pid = os.fork()
    if pid == 0:
        try:
            end_with_parent(parent)
        except OSError as error:
            # An exception here would let the child continue the code of its parent.
            os.write(2, f"{error}\n".encode())
            os._exit(1)
    return pid


def adopt_orphans() -> None:
    """Make this process the parent of descendants whose parents have ended."""
    _prctl(_PR_SET_CHILD_SUBREAPER, 1)


def children() -> list[int]:
    """Return the children of this process; empty if the system does not list them."""
    try:
        with open(f"/proc/self/task/{os.getpid()}/children") as file:
            return [int(pid) for pid in file.read().split()]
    except FileNotFoundError:
        return []


def limit(limits: Sequence[tuple[str, int, int]]) -> None:
    """Set resource limits, each a name with a soft and a hard limit."""
    for name, soft, hard in limits:
        resource.setrlimit(getattr(resource, f"RLIMIT_{name}"), (soft, hard))


def drop_capabilities() -> None:
    """Drop all capabilities, also for programs that this process executes."""
    if sys.platform != "linux":
        return
    # Without it a program with the setuid bit would bring capabilities back.
    _prctl(_PR_SET_NO_NEW_PRIVS, 1)
    _LIBC.prctl(_PR_CAP_AMBIENT, _PR_CAP_AMBIENT_CLEAR_ALL, 0, 0, 0)
    # How many there are depends on the kernel: the first unknown one is an error.
    capability = 0
    while _LIBC.prctl(_PR_CAPBSET_DROP, capability, 0, 0, 0) == 0:
        capability += 1
    header = (ctypes.c_uint32 * 2)(_CAPABILITY_VERSION_3, 0)
    _call("capset", header, (ctypes.c_uint32 * 6)())


def forbid_calls(*, own_processes: bool) -> None:
    """Let system calls fail that no test needs (seccomp), where their numbers are known.

    A limit of another process, such as the supervisor, cannot be changed.

    Args:
        own_processes: whether all processes in sight are the program's, so that it may signal
            them. Else it may signal itself alone.
    """
    machine = os.uname().machine
    if sys.platform != "linux" or machine not in _AUDIT_ARCHITECTURES:
        return
    # The filter refuses all keys; should it miss a way to them, there are none of the caller.
    _LIBC.syscall(_numbers_of_forbidden(machine)["keyctl"], _JOIN_SESSION_KEYRING, None)
    code = _filter(machine, own_processes).replace(_OWN_PROCESS, struct.pack("=I", os.getpid()))
    buffer = ctypes.create_string_buffer(code, len(code))
    program = struct.pack("HP", len(code) // _STEP.size, ctypes.addressof(buffer))
    _prctl(_PR_SET_SECCOMP, _SECCOMP_MODE_FILTER, program)


def _numbers_of_forbidden(machine: str) -> dict[str, int]:
    column = list(_AUDIT_ARCHITECTURES).index(machine)
    lists = [call.split() for call in _FORBIDDEN.split(",")]
    return {name: int(numbers[column]) for name, *numbers in lists}


@functools.cache
def _filter(machine: str, own_processes: bool) -> bytes:
    """Return the filter of calls, in which `_OWN_PROCESS` stands for the process."""
    column = list(_AUDIT_ARCHITECTURES).index(machine)
    (process,) = struct.unpack("=I", _OWN_PROCESS)
    # A call, the number of its argument, and the verdicts on some of its values and on others.
    checked: list[tuple[tuple[int, int], int, tuple[int, ...], int, int]] = [
        (_PRLIMIT, 0, (0, process), _ALLOW, _DENY),
        (_SOCKET, 0, _SOCKETS, _ALLOW, _DENY),
        (_FCNTL, 1, _SIGNALS, _DENY, _ALLOW),
        (_IOCTL, 1, _SOCKET_OWNERS, _DENY, _ALLOW),
    ]
    if not own_processes:
        checked += [(call, 0, (process,), _ALLOW, _DENY) for call in (_KILL, _TGKILL, _QUEUE)]
    # Each jump skips instructions if the value that was loaded last is the given one, or is not.
    steps = [
        (_LOAD, 0, 0, 4),
        (_EQUAL, 1, 0, _AUDIT_ARCHITECTURES[machine]),
        (_RETURN, 0, 0, _DENY),
        (_LOAD, 0, 0, 0),
        (_AT_LEAST, 0, 1, _X32),
        (_RETURN, 0, 0, _DENY),
    ]
    for number in _numbers_of_forbidden(machine).values():
        steps += [(_EQUAL, 0, 1, number), (_RETURN, 0, 0, _DENY)]
    for call, argument, values, these, others in checked:
        steps += [(_EQUAL, 0, 2 + 2 * len(values), call[column]), (_LOAD, 0, 0, 16 + 8 * argument)]
        for value in values:
            steps += [(_EQUAL, 0, 1, value), (_RETURN, 0, 0, these)]
        steps += [(_RETURN, 0, 0, others)]
    steps += [(_RETURN, 0, 0, _ALLOW)]
    return b"".join(_STEP.pack(*step) for step in steps)


def landlock_version() -> int:
    """Return the version of Landlock in the kernel; 0 if it has none."""
    if sys.platform != "linux":
        return 0
    return max(int(_LIBC.syscall(_LANDLOCK_CREATE_RULESET, None, 0, 1)), 0)


def stay_in(folder: str, readable: Sequence[str]) -> None:
    """With Landlock in the kernel: forbid to read and write elsewhere, and to reach processes.

    Args:
        folder: the only folder to write to.
        readable: folders of Python to read in addition to the system's.
    """
    # Older kernels know fewer rights, and refuse a rule set that names others.
    version = landlock_version()
    if version < 1:
        return
    writing = _LANDLOCK_WRITE
    if version >= _LANDLOCK_ABI["refer"]:
        writing |= 1 << 13  # to move files between folders
    if version >= _LANDLOCK_ABI["truncate"]:
        writing |= _LANDLOCK_TRUNCATE
    scopes = _LANDLOCK_SCOPES if version >= _LANDLOCK_ABI["scopes"] else 0
    ruleset = (ctypes.c_uint64 * 3)(writing | _LANDLOCK_READ, 0, scopes)
    size = ctypes.sizeof(ruleset) if scopes else ctypes.sizeof(ctypes.c_uint64)
    domain = _call("syscall", _LANDLOCK_CREATE_RULESET, ruleset, ctypes.c_size_t(size), 0)
    of_files = _LANDLOCK_READ_FILE | _LANDLOCK_EXECUTE | (writing & _LANDLOCK_WRITE_FILES)
    rights = dict.fromkeys((*_SYSTEM, *_SETTINGS, *_STATE, *readable), _LANDLOCK_READ)
    rights |= dict.fromkeys((f"/dev/{name}" for name in _DEVICES), of_files)
    rights[folder] = writing | _LANDLOCK_READ
    for path, allowed in rights.items():
        if not os.path.exists(path):
            continue
        place = os.open(path, os.O_PATH)
        if not os.path.isdir(path):  # The rights of folders are refused for a file.
            allowed &= of_files
        rule = struct.pack("=Qi", allowed, place)
        _call("syscall", _LANDLOCK_ADD_RULE, domain, 1, rule, 0)
        os.close(place)
    _call("syscall", _LANDLOCK_RESTRICT_SELF, domain, 0)
    os.close(domain)


def close_standard() -> None:
    """Redirect the standard descriptors to /dev/null."""
    nowhere = os.open(os.devnull, os.O_RDWR)
    for standard in (0, 1, 2):
        os.dup2(nowhere, standard)
    os.close(nowhere)


def close_others(*kept: int) -> None:
    """Close all descriptors except the standard ones and those in `kept`."""
    first = 3
    for descriptor in sorted(kept):
        os.closerange(first, descriptor)
        first = descriptor + 1
    os.closerange(first, os.sysconf("SC_OPEN_MAX"))


def scratch_folder(python: Sequence[str]) -> str:
    """Return the path of the scratch folder: one that hides none of the folders in `python`.

    A scratch folder around them would let a program put others in their place, for the tests too.
    """
    paths = [*python, *map(os.path.realpath, python)]
    folder = _SCRATCH
    number = 1
    while any(os.path.commonpath([path, folder]) in (path, folder) for path in paths):
        folder = _OTHER_SCRATCH if number == 1 else f"{_OTHER_SCRATCH}{number}"
        number += 1
    return folder


def enter_root(
    python: Sequence[str], hidden: Sequence[str], *, scratch: str, size: int, files: int
) -> None:
    """Make the new root and enter it.

    Args:
        python: folders of the interpreter and its packages.
        hidden: folders that stay empty where a system folder contains them, such as homes.
        scratch: the folder to write to, as of `scratch_folder`.
        size: largest total size in bytes of all files of the scratch folder.
        files: largest number of its files and folders.

    Raises:
        OSError: the system does not allow it.
    """
    with open(_USER_NAMESPACES, "w") as file:
        file.write("0")  # a new namespace would give a program capabilities again
    # Resolved now: below the new root the links would lead elsewhere.
    places = {path: os.path.realpath(path) for path in (*_SYSTEM, *python)}
    links = {path: os.readlink(path) for path in _SYSTEM if os.path.islink(path)}
    small = "mode=755,size=1m,nr_inodes=4k"
    _mount("tmpfs", "/tmp", "tmpfs", _MS_NOSUID | _MS_NODEV, small)
    # The old root stays in sight below the first one, to bind from, and is gone with the second.
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
    for path in (scratch, _SCRATCH, "/proc", "/run", "/var"):
        os.makedirs(f"/new{path}", exist_ok=True)
    for path, target in (_LINKS | dict.fromkeys(_LINKS_TO_SCRATCH, scratch)).items():
        if not os.path.lexists(f"/new{path}"):  # Python may lie there
            os.symlink(target, f"/new{path}")
    # All mounts below the root; needs Linux 5.12.
    attributes = (ctypes.c_uint64 * 4)(_MOUNT_ATTR_RDONLY | _MOUNT_ATTR_NOSUID)
    space = ctypes.c_size_t(ctypes.sizeof(attributes))
    _call("syscall", _MOUNT_SETATTR, _AT_FDCWD, b"/new", _AT_RECURSIVE, attributes, space)
    _mount_proc("/new/proc")
    # Numbers of files are limited as well: empty ones take kernel memory and no room.
    bounds = f"mode=777,size={size},nr_inodes={files}"
    _mount("tmpfs", f"/new{scratch}", "tmpfs", _MS_NOSUID | _MS_NODEV, bounds)
    os.chdir("/new")
    _pivot_root(".", ".")
    _call("umount2", b".", _MNT_DETACH)
    os.chdir("/")


def separate_children() -> None:
    """Put the next process that this one forks into a new process namespace."""
    _call("unshare", _CLONE_NEWPID)


def see_own_processes() -> None:
    """Mount the /proc of this process's namespace, for it and its children alone."""
    _call("unshare", _CLONE_NEWNS)
    _mount_proc("/proc")
    if os.path.exists("/proc/keys"):  # the names of the user's keys
        _mount(os.devnull, "/proc/keys", None, _MS_BIND)


def _bind(source: str, path: str) -> None:
    """Bind a path of the old root into the new one, if it exists."""
    source = f"/old{source}"
    target = f"/new{path}"
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
    _call("mount", *arguments, ctypes.c_ulong(flags), options.encode())


def _pivot_root(new: str, old: str) -> None:
    number = _SYS_PIVOT_ROOT.get(os.uname().machine)
    if number is None:
        raise OSError(f"pivot_root is not known on {os.uname().machine}")
    _call("syscall", number, new.encode(), old.encode())
