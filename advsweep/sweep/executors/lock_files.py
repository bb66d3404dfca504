"""Files whose bytes stand for parts of this machine: whoever locks a byte has that part.

The locks belong to an open file (Linux's open file description locks), which a child process may
inherit: they are there until all processes that have it open are gone, and the kernel frees them
at once, however these end. Each lock has a record beside it, which says whose it is. Records are
for people to read: everybody can write them, and nothing obeys them.

All users of the machine share `/tmp/advsweep-locks`, whose mode is that of /tmp. `ADVSWEEP_RUNTIME`
names another folder. A link, or a file that another user could have prepared in its place, is
never opened. Systems other than Linux have no such locks; nothing is reserved there.
"""

from __future__ import annotations

import contextlib
import errno
import fcntl
import json
import os
import pwd
import stat
import struct
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass, replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, Self

from advsweep.errors import ConfigError, reason_of
from advsweep.local_files import FILE_MODE, FOLDER_MODE, make_private_folder

RUNTIME_VARIABLE = "ADVSWEEP_RUNTIME"
SHARED_FOLDER = Path("/tmp/advsweep-locks")
SUFFIX = ".lock"

_SHARED_MODE = 0o1777
_SHARED_FILE_MODE = 0o666

# Records begin behind all bytes that are locked, one for each.
_RECORDS = 1 << 16
_RECORD_BYTES = 256
_NAME_CHARACTERS = 80

# While another user makes a folder or a file, it has not got its mode yet.
_TRIES = 50
_PAUSE_SECONDS = 0.01

# `struct flock`: type, whence, start, length and process. Python's own `fcntl.lockf` makes locks
# of a process, which a child would not inherit.
_FLOCK = "hhqqi"
_LAST_BYTE = 2**63 - 1


@dataclass(frozen=True, kw_only=True)
class Holder:
    """Who has a part of the machine, by its own record.

    Attributes:
        pid: the process of the run; 0 if the record cannot be read.
        parent: the process that started it.
        sweep: the name of the sweep; empty for none.
        since: seconds since 1970.
    """

    pid: int = 0
    parent: int = 0
    uid: int = -1
    run: int = 0
    sweep: str = ""
    since: float = 0.0

    @classmethod
    def current(cls, *, pid: int, run: int, sweep: str) -> Self:
        """Return the holder of a part that this process has just taken for a run."""
        return cls(
            pid=pid, parent=os.getpid(), uid=os.getuid(), run=run, sweep=sweep, since=time.time()
        )

    @property
    def user(self) -> str:
        """The name of its user; the number if it has none here."""
        try:
            return pwd.getpwuid(self.uid).pw_name
        except (KeyError, OverflowError):
            return str(self.uid)

    def describe(self) -> str:
        """Return who it is in a few words."""
        if not self.pid:
            return "a process without a record"
        run = f"run {self.run}"
        if self.sweep:
            run = f"{run} of sweep {self.sweep}"
        since = time.strftime("%H:%M", time.localtime(self.since))
        return f"{run} (pid {self.pid}, {self.user}, since {since})"


def has_locks() -> bool:
    """Return whether this system can lock parts of the machine."""
    return hasattr(fcntl, "F_OFD_SETLK")


class LockFile:
    """An open file with locks; closed by `close`, or with the last process that has it.

    Raises:
        ConfigError: the folder or the file cannot be used.
    """

    def __init__(self, name: str) -> None:
        self.descriptor = _open_to_write(name + SUFFIX)

    def lock(self, start: int, length: int = 1) -> bool:
        """Lock some bytes; return whether that worked. The same file may lock them again."""
        try:
            self._set(fcntl.F_WRLCK, start, length)
        except (BlockingIOError, PermissionError):
            return False
        return True

    def unlock(self, start: int, length: int = 1) -> None:
        """Free bytes for all processes that have this file."""
        self._set(fcntl.F_UNLCK, start, length)

    def _set(self, kind: int, start: int, length: int) -> None:
        request = struct.pack(_FLOCK, kind, os.SEEK_SET, start, length, 0)
        fcntl.fcntl(self.descriptor, fcntl.F_OFD_SETLK, request)

    def is_locked(self, start: int, length: int = 1) -> bool:
        """Return whether other files have locks on some of the bytes."""
        return self.end_of_lock(start, length) is not None

    def end_of_lock(self, start: int, length: int) -> int | None:
        """Return the first byte behind another file's lock on some bytes; None without one."""
        lock = _lock_in(self.descriptor, start, length)
        if lock is None:
            return None
        begin, size = lock
        return begin + size

    def write_record(self, start: int, holder: Holder) -> None:
        """Say whose a locked byte is; a file that is full or cannot grow is no error."""
        named = replace(holder, sweep=holder.sweep[:_NAME_CHARACTERS])
        text = json.dumps(asdict(named), ensure_ascii=False).encode(errors="replace")
        if len(text) > _RECORD_BYTES:
            text = json.dumps(asdict(replace(holder, sweep=""))).encode()
        with contextlib.suppress(OSError):
            os.pwrite(self.descriptor, text.ljust(_RECORD_BYTES), _RECORDS + start * _RECORD_BYTES)

    def close(self) -> None:
        """Close this process's descriptor; children may still have the file."""
        os.close(self.descriptor)


def locked_parts(path: Path, size: int, *, single: bool) -> Iterator[tuple[int, int, Holder]]:
    """Yield start, length and holder of each lock of a file.

    Args:
        size: the number of bytes that may be locked.
        single: yield each byte, as a process may have several locks side by side.
    """
    try:
        descriptor = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC)
    except OSError:
        return  # it has just been removed, or nobody may read it
    with open(descriptor, "rb", buffering=0):
        start = 0
        while start < size:
            lock = _lock_in(descriptor, start, 1)
            if lock is None:
                start += 1
                continue
            begin, length = (start, 1) if single else lock
            length = min(length, size - begin)
            yield begin, length, _read_record(descriptor, begin)
            start = begin + length


def check_folder() -> Path:
    """Return the folder of the locks, whether or not it is there yet.

    Raises:
        ConfigError: it cannot be used.
    """
    path = _folder_path()
    if os.path.lexists(path):
        try:
            with _open_folder():
                pass
        except OSError as error:
            raise ConfigError(_refusal(path, error)) from error
    return path


def lock_files() -> list[Path]:
    """Return the files of the folder; none if there is no folder yet."""
    try:
        return sorted(_folder_path().glob(f"*{SUFFIX}"))
    except OSError:
        return []


def _lock_in(descriptor: int, start: int, length: int) -> tuple[int, int] | None:
    """Return start and length of another file's lock on some bytes; None without one."""
    request = struct.pack(_FLOCK, fcntl.F_WRLCK, os.SEEK_SET, start, length, 0)
    answer = fcntl.fcntl(descriptor, fcntl.F_OFD_GETLK, request)
    kind, _, begin, size, _ = struct.unpack(_FLOCK, answer)
    if kind == fcntl.F_UNLCK:
        return None
    # The kernel says 0 of a lock without an end, as `lockf` in any program makes it.
    return begin, size or _LAST_BYTE - begin


def _read_record(descriptor: int, start: int) -> Holder:
    """Return the holder of a lock; an unknown one if the record cannot be read."""
    text = os.pread(descriptor, _RECORD_BYTES, _RECORDS + start * _RECORD_BYTES)
    try:
        node: Any = json.loads(text)
        holder = Holder(
            pid=int(node["pid"]),
            parent=int(node["parent"]),
            uid=int(node["uid"]),
            run=int(node["run"]),
            sweep=str(node["sweep"]),
            since=float(node["since"]),
        )
        datetime.fromtimestamp(holder.since, UTC)
    except (ValueError, TypeError, LookupError, OverflowError, OSError, RecursionError):
        return Holder()
    return holder


def _folder_path() -> Path:
    named = os.environ.get(RUNTIME_VARIABLE)
    return Path(named) if named else SHARED_FOLDER


@contextmanager
def _open_folder() -> Iterator[int]:
    """Make the folder of the locks if need be, and open it.

    Raises:
        ConfigError: another user has put something else in its place.
        OSError: it cannot be made or opened.
    """
    path = _folder_path()
    options = os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC
    if path == SHARED_FOLDER:
        options |= os.O_NOFOLLOW
        with contextlib.suppress(FileExistsError):
            path.mkdir(mode=FOLDER_MODE)
            path.chmod(_SHARED_MODE)
    else:
        make_private_folder(path)
    descriptor = os.open(path, options)
    try:
        status = os.fstat(descriptor)
        is_trusted = status.st_uid in (0, os.getuid())
        # Without the sticky bit everybody could put other files in place of these.
        if status.st_uid == os.getuid() and path == SHARED_FOLDER:
            os.fchmod(descriptor, _SHARED_MODE)  # the process that made it may have been killed
        if not is_trusted and stat.S_IMODE(status.st_mode) != _SHARED_MODE:
            raise ConfigError(
                f"{path}: expected a folder for the locks of all users, of mode 1777 like /tmp, "
                f"got another user's; name a folder with {RUNTIME_VARIABLE}=DIR"
            )
        yield descriptor
    finally:
        os.close(descriptor)


def _open_to_write(name: str) -> int:
    """Open a file of locks, which is made if need be.

    Raises:
        ConfigError: it cannot be used.
    """
    error: OSError | None = None
    for _ in range(_TRIES):
        try:
            with _open_folder() as folder:
                return _open_or_make(folder, name)
        except (FileNotFoundError, PermissionError, BlockingIOError) as refused:
            # Another process makes it, removes it or is about to remove it at this moment.
            error = refused
            time.sleep(_PAUSE_SECONDS)
        except OSError as refused:
            error = refused
            break
    assert error is not None
    raise ConfigError(_refusal(_folder_path() / name, error)) from error


def _refusal(path: Path, error: OSError) -> str:
    reason = "a link" if error.errno == errno.ELOOP else reason_of(error)
    return (
        f"{path}: expected a place for locks, which keep two runs from the same GPU or core, got: "
        f"{reason}; name a folder with {RUNTIME_VARIABLE}=DIR"
    )


def _open_or_make(folder: int, name: str) -> int:
    options = os.O_RDWR | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC
    try:
        # Made apart from being opened: the kernel refuses O_CREAT on another user's file in a
        # folder with the sticky bit.
        descriptor = os.open(name, options, dir_fd=folder)
    except FileNotFoundError:
        descriptor = os.open(name, options | os.O_CREAT | os.O_EXCL, FILE_MODE, dir_fd=folder)
        is_shared = os.fstat(folder).st_mode & stat.S_IWOTH
        os.fchmod(descriptor, _SHARED_FILE_MODE if is_shared else FILE_MODE)
    try:
        _check_file(folder, name, descriptor)
    except BaseException:
        os.close(descriptor)
        raise
    return descriptor


def _check_file(folder: int, name: str, descriptor: int) -> None:
    """Check that an open file may have locks, and keep it from being removed.

    Raises:
        ConfigError: it is a special file or a link.
        FileNotFoundError: it has been removed.
        BlockingIOError: another process is about to remove it.
    """
    status = os.fstat(descriptor)
    if not stat.S_ISREG(status.st_mode) or status.st_nlink > 1:
        raise ConfigError(
            f"{_folder_path() / name}: expected a file for locks, got a special file or a link; "
            f"remove it, or name a folder with {RUNTIME_VARIABLE}=DIR"
        )
    # systemd-tmpfiles removes old files of /tmp, except those with such a lock.
    fcntl.flock(descriptor, fcntl.LOCK_SH | fcntl.LOCK_NB)
    if os.stat(name, dir_fd=folder).st_ino != status.st_ino:
        raise FileNotFoundError(name)
