"""What shows that a failure is of a class."""

from __future__ import annotations

import errno
import os
import signal
from pathlib import Path

import pytest
import torch

from advsweep.errors import (
    ConfigError,
    NoMemoryError,
    ProcessKilledError,
    StoreError,
    TrainingError,
)
from advsweep.failures import (
    Failure,
    classify,
    classify_exit,
    is_disk_full,
    is_out_of_memory,
    line_out_of_memory,
)


class OutOfMemoryError(RuntimeError):
    """As torch, and other libraries, name theirs."""


def system_error(number: int) -> OSError:
    return OSError(number, os.strerror(number))


ERRORS = [
    (MemoryError(), Failure.OOM),
    (NoMemoryError("take less"), Failure.OOM),
    (OutOfMemoryError("CUDA"), Failure.OOM),
    (RuntimeError("DefaultCPUAllocator: can't allocate memory"), Failure.OOM),
    (RuntimeError("CUDA error: out of memory"), Failure.OOM),
    (RuntimeError("CUBLAS_STATUS_ALLOC_FAILED when calling"), Failure.OOM),
    (ProcessKilledError("killed by SIGKILL"), Failure.KILLED),
    (ProcessKilledError("killed by SIGKILL; its last words: disk is full"), Failure.KILLED),
    (system_error(errno.ENOSPC), Failure.DISK),
    (system_error(errno.EDQUOT), Failure.DISK),
    (system_error(errno.EFBIG), Failure.DISK),
    (RuntimeError("PytorchStreamWriter failed writing file data/0: file write"), Failure.DISK),
    (RuntimeError("basic_ios::clear: iostream error"), Failure.DISK),
    (StoreError("a.db: the disk is full"), Failure.DISK),
    (TrainingError("exit code 1; its last words: No space left on device"), Failure.DISK),
    # Of a message alone, only errors of libraries say that memory ran out.
    (ConfigError("expected words, got 'out of memory'"), Failure.ERROR),
    (system_error(errno.EACCES), Failure.ERROR),
    (system_error(errno.ENOMEM), Failure.ERROR),
    (RuntimeError("shapes do not fit"), Failure.ERROR),
    (SystemExit(3), Failure.ERROR),
]


@pytest.mark.parametrize(("error", "expected"), ERRORS, ids=lambda each: repr(each)[:60])
def test_an_error_has_the_class_of_the_first_sign(error: BaseException, expected: Failure) -> None:
    assert classify(error) is expected
    assert is_out_of_memory(error) is (expected is Failure.OOM)


EXITS = [
    (-signal.SIGKILL, False, Failure.KILLED),
    (-signal.SIGKILL, True, Failure.OOM),
    # The kernel sends no other signal for lack of memory.
    (-signal.SIGTERM, True, Failure.KILLED),
    (-signal.SIGSEGV, False, Failure.KILLED),
    (-signal.SIGXFSZ, False, Failure.DISK),
    (-signal.SIGXFSZ, True, Failure.DISK),
    (-35, False, Failure.KILLED),
    (1, False, Failure.ERROR),
    (70, True, Failure.ERROR),
]


@pytest.mark.parametrize(("code", "by_kernel", "expected"), EXITS)
def test_an_exit_code_has_a_class(code: int, by_kernel: bool, expected: Failure) -> None:
    assert classify_exit(code, killed_by_kernel=by_kernel) is expected


def test_the_line_of_an_output_that_tells_of_no_memory() -> None:
    assert line_out_of_memory(["torch.cuda.OutOfMemoryError: no"]) is not None
    assert line_out_of_memory(["MemoryError"]) is not None
    lines = ["step 3", "RuntimeError: can't allocate memory: 8 GB", "CUDA error: out of memory"]
    assert line_out_of_memory(lines) == lines[1]
    assert line_out_of_memory(["step 3", "memory: 4 of 8 GB"]) is None


def test_a_full_disk_may_be_told_by_the_cause_alone() -> None:
    wrapped = StoreError("a.db: its disk cannot be written")
    assert not is_disk_full(wrapped)
    wrapped.__cause__ = system_error(errno.EFBIG)
    assert is_disk_full(wrapped)
    assert classify(wrapped) is Failure.DISK


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="no device that is always full")
@pytest.mark.parametrize("size", [10, 100_000])
def test_what_torch_says_of_a_full_disk(size: int) -> None:
    with pytest.raises(RuntimeError) as caught:
        torch.save({"weight": torch.zeros(size)}, "/dev/full")
    assert is_disk_full(caught.value)
