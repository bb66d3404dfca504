"""A root folder of its own: system and Python read-only, a small scratch folder, nothing else.

Called in user, mount and process namespaces that `unshare` has made, with all capabilities in
them. Folders that are not named do not exist in the new root: neither home folders and data nor
the sockets below /run, /var and /tmp.
"""

from __future__ import annotations

import ctypes
import os
from collections.abc import Sequence

from advsweep.tasks.verifiers.sandbox.inside.confine import checked, libc

SCRATCH = "/tmp"
"""The only folder that can be written."""

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


def enter_root(python: Sequence[str], hidden: Sequence[str]) -> None:
    """Makes the new root and enters it.

    Args:
        python: folders of the interpreter and its packages.
        hidden: folders that stay empty where a system folder contains them, such as homes.

    Raises:
        OSError: the system does not allow it.
    """
    with open(_USER_NAMESPACES, "w") as limit:
        limit.write("0")  # a namespace of its own would give a program capabilities again
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
    """Makes an empty scratch folder for this process and its children; their working folder.

    Args:
        size: bytes of all files together.
        files: how many files and folders it may hold.
    """
    checked(libc().unshare(_CLONE_NEWNS | _CLONE_NEWIPC), "unshare")
    mode = f"mode=777,size={size},nr_inodes={files}"
    _mount("tmpfs", SCRATCH, "tmpfs", _MS_NOSUID | _MS_NODEV, mode)
    os.chdir(SCRATCH)


def separate_children() -> None:
    """Puts the next process that this one forks in a process namespace of its own."""
    checked(libc().unshare(_CLONE_NEWPID), "unshare")


def see_own_processes() -> None:
    """Mounts the /proc of this process's namespace, for it and its children alone."""
    checked(libc().unshare(_CLONE_NEWNS), "unshare")
    _mount_proc("/proc")


def _bind(source: str, path: str) -> None:
    """Binds a path of the old root into the new one, if it is there."""
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
    """Of all mounts below a path; needs Linux 5.12."""
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
