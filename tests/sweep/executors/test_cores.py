"""Cores that commands share: who has how many, and who waits."""

from __future__ import annotations

import fcntl
import os
import resource
import signal
import subprocess
import sys
import tempfile
from pathlib import Path

import pytest

from advsweep.errors import ConfigError
from advsweep.sweep.executors import lock_files
from advsweep.sweep.executors.lock_files import Holder, LockFile
from advsweep.sweep.executors.reservations import CorePool, Reservation, all_reserved

CORES = range(4)


def take(pool, number=1, only_free=True):
    return pool.take(CORES, number, only_free=only_free)


def numbers(*runs):
    return [run and run.numbers for run in runs]


def test_a_command_takes_what_is_free_and_one_run_in_any_case():
    one = CorePool()
    other = CorePool()
    taken = [take(one) for _ in range(5)]
    assert numbers(*taken) == [[0], [1], [2], [3], None]
    first = take(other)
    assert numbers(first, take(other)) == [[], None]
    holder = Holder.current(pid=7, run=8, sweep="demo")
    other.describe(first, holder)
    one.give_back(taken[2])
    # The run that started without a core comes first.
    assert numbers(take(other), first) == [None, [2]]
    assert [part.holder.run for part in all_reserved() if part.holder == holder] == [8]
    one.give_back(taken[1])
    assert numbers(take(other)) == [[1]]


def test_a_chosen_number_of_runs_starts_whatever_others_have():
    one = CorePool()
    other = CorePool()
    assert numbers(take(one, 3)) == [[0, 1, 2]]
    assert numbers(*(take(other, 2, only_free=False) for _ in range(3))) == [[3], [], []]


def test_commands_come_to_equal_parts():
    one = CorePool()
    other = CorePool()
    held = {one: [], other: []}
    for pool in (one, one, one, one, other):
        held[pool].append(take(pool))
    for _ in range(6):
        # A run of the first ends, and both ask for a core, the first one first.
        one.give_back(held[one].pop())
        for pool in (one, other):
            run = take(pool)
            if run is not None:
                held[pool].append(run)
    # The other's first run started without a core, and got one before its next run started.
    assert [len(held[one]), len(held[other])] == [2, 2]
    assert sorted(core for run in held[one] + held[other] for core in run.numbers) == [*CORES]
    # Who does not wait leaves the cores to others.
    other.close()
    assert [len(run) for run in numbers(take(one), take(one))] == [1, 1]
    assert take(one) is None


def test_the_cores_of_a_run_are_told_together_and_are_free_after_a_kill():
    script = (
        "import os, sys, time\n"
        "from advsweep.sweep.executors.lock_files import Holder\n"
        "from advsweep.sweep.executors.reservations import CorePool\n"
        "pool = CorePool()\n"
        "for run in (1, 2):\n"
        "    cores = pool.take(range(4), 2, only_free=True)\n"
        "    pool.describe(cores, Holder.current(pid=run, run=run, sweep='demo'))\n"
        "print('ready', flush=True)\n"
        "time.sleep(600)\n"
    )
    process = subprocess.Popen([sys.executable, "-c", script], stdout=subprocess.PIPE)
    try:
        assert process.stdout is not None
        assert process.stdout.readline() == b"ready\n"
        told = [(part.what, part.holder.run, part.holder.parent) for part in all_reserved()]
        assert told == [("2 cores", 1, process.pid), ("2 cores", 2, process.pid)]
    finally:
        process.send_signal(signal.SIGKILL)
        process.communicate()
    assert all_reserved() == []
    assert numbers(take(CorePool(), 4)) == [[0, 1, 2, 3]]


# The folder


def make_shared(path, monkeypatch):
    monkeypatch.delenv("ADVSWEEP_RUNTIME")
    monkeypatch.setattr(lock_files, "SHARED_FOLDER", path)


def test_all_users_share_a_folder_like_that_of_temporary_files(tmp_path, monkeypatch):
    folder = tmp_path / "shared"
    make_shared(folder, monkeypatch)
    mask = os.umask(0o077)
    try:
        LockFile("GPU-1").close()
    finally:
        os.umask(mask)
    assert folder.stat().st_mode & 0o7777 == 0o1777
    assert (folder / "GPU-1.lock").stat().st_mode & 0o777 == 0o666


@pytest.mark.skipif(os.getuid() != 0, reason="takes the rights of two users")
def test_users_see_the_locks_of_each_other(tmp_path, monkeypatch):
    # The folders of the test are root's alone; that of all users lies in /tmp.
    with tempfile.TemporaryDirectory(dir="/tmp") as name:
        folder = Path(name)
        folder.chmod(0o755)
        make_shared(folder / "shared", monkeypatch)
        mine = LockFile("GPU-1")
        assert mine.lock(0, 1000)
        mine.write_record(0, Holder.current(pid=7, run=8, sweep="demo"))
        theirs, told = os.pipe()
        child = os.fork()
        if child == 0:
            os.setgroups([])
            os.setgid(65534)
            os.setuid(65534)
            file = LockFile("GPU-1")
            answers = [file.lock(0, 500), all_reserved()[0].holder.run, LockFile("GPU-2").lock(0)]
            os.write(told, repr(answers).encode())
            os._exit(0)
        os.close(told)
        os.waitpid(child, 0)
        assert os.read(theirs, 99) == b"[False, 8, True]"
        os.close(theirs)
        # A file that the other user has made is this user's, too.
        assert LockFile("GPU-2").lock(0)


def test_a_folder_of_ones_own_stays_private(tmp_path, monkeypatch):
    monkeypatch.setenv("ADVSWEEP_RUNTIME", str(tmp_path / "mine"))
    LockFile("GPU-1").close()
    assert (tmp_path / "mine").stat().st_mode & 0o777 == 0o700
    assert (tmp_path / "mine" / "GPU-1.lock").stat().st_mode & 0o777 == 0o600


def test_a_link_is_not_followed(tmp_path, monkeypatch):
    victim = tmp_path / "victim"
    victim.write_text("precious")
    folder = tmp_path / "shared"
    make_shared(folder, monkeypatch)
    LockFile("GPU-1").close()
    (folder / "GPU-2.lock").symlink_to(victim)
    (folder / "GPU-3.lock").hardlink_to(victim)
    os.mkfifo(folder / "GPU-4.lock")
    for name in ("GPU-2", "GPU-3", "GPU-4"):
        with pytest.raises(ConfigError, match="name a folder with ADVSWEEP_RUNTIME=DIR"):
            LockFile(name)
    (tmp_path / "link").symlink_to(tmp_path)
    monkeypatch.setattr(lock_files, "SHARED_FOLDER", tmp_path / "link")
    with pytest.raises(ConfigError, match="ADVSWEEP_RUNTIME"):
        LockFile("GPU-1")
    assert victim.read_text() == "precious"


def test_a_file_that_was_removed_is_made_anew(tmp_path, monkeypatch):
    folder = tmp_path / "mine"
    monkeypatch.setenv("ADVSWEEP_RUNTIME", str(folder))
    first = LockFile("GPU-1")
    assert first.lock(0)
    (folder / "GPU-1.lock").unlink()
    assert LockFile("GPU-1").lock(0)


def test_a_name_is_no_path(tmp_path, monkeypatch):
    monkeypatch.setenv("ADVSWEEP_RUNTIME", str(tmp_path / "mine"))
    assert Reservation().add("../../evil/GPU", 1.0)
    assert [path.name for path in (tmp_path / "mine").iterdir()] == [".._.._evil_GPU.lock"]


def test_records_fit_beside_each_other():
    file = LockFile("cores")
    holder = Holder.current(pid=2**31, run=2**40, sweep="\n" * 90)
    for core in (0, 1):
        assert file.lock(core)
        file.write_record(core, holder)
    assert [(part.what, part.holder.pid) for part in all_reserved()] == [("2 cores", 2**31)]


def test_a_file_that_is_about_to_be_removed_is_tried_again(monkeypatch):
    """By systemd-tmpfiles, which holds this lock meanwhile."""
    LockFile("cores").close()
    [path] = lock_files.lock_files()
    opened = len(os.listdir("/proc/self/fd"))
    with path.open() as remover:
        fcntl.flock(remover, fcntl.LOCK_EX)
        monkeypatch.setattr(lock_files.time, "sleep", lambda _: fcntl.flock(remover, fcntl.LOCK_UN))
        file = LockFile("cores")
    file.close()
    assert len(os.listdir("/proc/self/fd")) == opened


def test_a_full_disk_stops_no_run():
    pool = CorePool()
    cores = take(pool)
    limits = resource.getrlimit(resource.RLIMIT_FSIZE)
    previous = signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
    try:
        resource.setrlimit(resource.RLIMIT_FSIZE, (0, limits[1]))
        pool.describe(cores, Holder.current(pid=7, run=8, sweep="demo"))
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, limits)
        signal.signal(signal.SIGXFSZ, previous)
    [part] = all_reserved()
    assert part.holder.describe() == "a process without a record"
