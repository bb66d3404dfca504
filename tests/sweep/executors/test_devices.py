"""Which GPUs there are, as nvidia-smi lists them, and which a run is given."""

from __future__ import annotations

import os
import subprocess

import pytest

from advsweep.errors import AdvsweepWarning
from advsweep.sweep.executors import devices as device_module
from advsweep.sweep.executors.devices import (
    Device,
    DevicePool,
    room,
    select,
    visible_devices,
)
from advsweep.sweep.executors.lock_files import Holder, LockFile
from advsweep.sweep.executors.reservations import Reservation, all_reserved, reserved_gpu

GPUS_HERE = [Device("GPU-1111", 40960, 40327), Device("GPU-2222", 40960), Device("GPU-5555")]


@pytest.mark.parametrize(
    ("visible", "names"),
    [
        (None, ["GPU-1111", "GPU-2222", "GPU-5555"]),
        ("", []),
        ("-1", []),
        ("0,2", ["0", "2"]),
        (" 2 , 0 ", ["2", "0"]),
        ("0,7,2", ["0"]),
        ("GPU-5,GPU-1111", ["GPU-5", "GPU-1111"]),
        ("MIG-4444", ["MIG-4444"]),
        ("GPU-9", []),
        ("0,0", ["0"]),
    ],
)
def test_visible_devices_are_those_that_cuda_would_see(visible, names):
    assert [device.name for device in select(GPUS_HERE, visible)] == names


def test_they_are_asked_of_nvidia_smi(free_memory, monkeypatch):
    free_memory(123)
    assert visible_devices() == [Device("GPU-aaaa", 40960, 123), Device("GPU-bbbb", 40960, 40000)]
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "1")
    assert visible_devices() == [Device("1", 40960, 40000, "GPU-bbbb")]


def a100(name, free=40000):
    return Device(name, 40960, free)


def test_a_share_is_of_memory_that_is_free_whoever_has_the_rest(monkeypatch):
    def take(gpus, *devices, taken=""):
        monkeypatch.setattr(device_module, "visible_devices", lambda: devices)
        pool = DevicePool(gpus)
        pool.taken.update(taken)
        allocation = pool.take()
        pool.close()
        if allocation is None:
            return None
        pool.give_back(allocation)
        return tuple(allocation.keys)

    # Half of 40,960 MiB less the tenth that may be gone are 18,432 MiB.
    assert take(0.5, a100("0", free=18432)) == ("0",)
    assert take(0.5, a100("0", free=18431)) is None
    assert take(0.5, a100("0", free=18431), a100("1"), taken="1") == ("1",)
    assert take(0.5, a100("0"), a100("1"), taken="0") == ("1",)
    assert take(1, Device("MIG-0")) == ("MIG-0",)
    # Two halves are a whole, and so are three thirds.
    assert take(0.5, a100("0"), taken="00") is None
    assert take(1 / 3, a100("0"), taken="00") == ("0",)
    assert take(2, a100("0"), a100("1"), a100("2"), taken="0") == ("1", "2")
    assert take(2, a100("0")) is None


@pytest.mark.parametrize(
    ("devices", "gpus", "runs"),
    [(2, 0.5, 4), (2, 1 / 3, 6), (1, 0.3, 3), (1, 0.6, 1), (4, 1, 4), (5, 2, 2), (1, 2, 0)],
)
def test_how_many_there_is_room_for(devices, gpus, runs):
    assert room(devices, gpus) == runs


def test_devices_are_looked_at_again_after_a_moment(monkeypatch):
    looks: list[list[Device]] = [[a100("0", free=40000)], [a100("0", free=100)]]
    monkeypatch.setattr(device_module, "visible_devices", lambda: looks.pop(0))
    books = DevicePool(1)
    assert not books.taken.total()
    for _ in range(2):
        allocation = books.take()
        assert allocation is not None
        assert allocation.keys == ["0"]
        assert books.taken.total() == 1
        books.give_back(allocation)
    monkeypatch.setattr("advsweep.sweep.executors.devices.MEMORY_SECONDS", 0.0)
    assert books.take() is None


# Across processes


def test_no_device_has_two_runs_of_two_sweeps(monkeypatch):
    monkeypatch.setattr(device_module, "visible_devices", lambda: [a100("GPU-1"), a100("GPU-2")])
    one = DevicePool(1)
    other = DevicePool(1)
    first = one.take()
    second = other.take()
    assert first is not None
    assert second is not None
    assert {*first.keys, *second.keys} == {"GPU-1", "GPU-2"}
    assert one.take() is other.take() is None
    other.give_back(second)
    again = other.take()
    assert again is not None
    assert again.keys == second.keys


def test_a_sweep_that_has_its_part_leaves_the_next_device_to_one_that_waits(monkeypatch):
    monkeypatch.setattr(device_module, "visible_devices", lambda: [a100("GPU-1"), a100("GPU-2")])
    one = DevicePool(1)
    taken = [one.take(), one.take()]
    assert None not in taken
    other = DevicePool(1)
    assert other.take() is None
    one.give_back(taken[0])
    assert one.take() is None
    assert other.take() is not None
    # Now each has one, and nobody takes the other's.
    one.give_back(taken[1])
    assert one.take() is not None


def test_a_sweep_that_is_gone_waits_no_longer(monkeypatch):
    monkeypatch.setattr(device_module, "visible_devices", lambda: [a100("GPU-1"), a100("GPU-2")])
    one = DevicePool(1)
    taken = [one.take(), one.take()]
    other = DevicePool(1)
    assert other.take() is None
    other.close()
    one.give_back(taken[0])
    assert one.take() is not None


def test_an_index_is_the_device_that_it_names(monkeypatch):
    monkeypatch.setattr(device_module, "visible_devices", lambda: [Device("0", uuid="GPU-7")])
    allocation = DevicePool(1).take()
    assert allocation is not None
    assert allocation.variables() == {
        "CUDA_VISIBLE_DEVICES": "0",
        "CUDA_DEVICE_ORDER": "PCI_BUS_ID",
    }
    assert not Reservation().add("GPU-7", 0.1)


def test_a_device_that_is_gone_is_told_once_and_is_to_blame(monkeypatch):
    listed = [a100("GPU-1"), a100("GPU-2")]
    monkeypatch.setattr(device_module, "visible_devices", lambda: list(listed))
    monkeypatch.setattr(device_module, "MEMORY_SECONDS", 0.0)
    pool = DevicePool(1)
    first = pool.take()
    second = pool.take()
    assert first is not None
    assert second is not None
    assert pool.lost(first) == []
    del listed[0]
    with pytest.warns(AdvsweepWarning, match="GPU-1: nvidia-smi lists it no longer; 1 GPU left"):
        assert pool.lost(first) == ["GPU-1"]
    assert pool.lost(second) == []
    pool.give_back(first)
    assert pool.take() is None
    listed.insert(0, a100("GPU-1"))
    again = pool.take()
    assert again is not None
    assert again.keys == ["GPU-1"]


@pytest.mark.parametrize(("share", "fits"), [(1.0, 1), (0.5, 2), (1 / 3, 3), (0.3, 3), (0.1, 10)])
def test_shares_of_a_device_never_exceed_it(share, fits):
    held = [Reservation() for _ in range(fits + 1)]
    assert all(each.add("GPU-3", share) for each in held[:fits])
    assert not held[fits].add("GPU-3", share)
    for each in held:
        each.release()
    assert held[fits].add("GPU-3", 1.0)


def test_the_smallest_share_is_a_thousandth():
    reservation = Reservation()
    assert reservation.add("GPU-3", 1e-5)
    reservation.describe(Holder.current(pid=7, run=8, sweep=""))
    assert [part.what for part in reserved_gpu("GPU-3")] == ["0.001 of GPU-3"]


def test_different_shares_of_a_device_never_exceed_it():
    shares = [0.5, 0.3, 0.2, 0.1]
    assert [Reservation().add("GPU-3", share) for share in shares] == [True, True, True, False]


def test_a_reservation_lasts_as_long_as_the_run_and_no_longer():
    """A scheduler that is killed leaves a run for a moment; a run that is killed leaves nothing."""
    reservation = Reservation()
    assert reservation.add("GPU-5", 1.0)
    run = subprocess.Popen(
        ["sleep", "100"], pass_fds=reservation.descriptors, stdin=subprocess.DEVNULL
    )
    reservation.describe(Holder.current(pid=run.pid, run=7, sweep="demo"))
    reservation.release()
    assert not Reservation().add("GPU-5", 0.2)
    [part] = reserved_gpu("GPU-5")
    assert (part.what, part.holder.pid, part.holder.parent) == ("GPU-5", run.pid, os.getpid())
    assert part.holder.describe().startswith(f"run 7 of sweep demo (pid {run.pid}, ")
    run.kill()
    run.wait()
    assert reserved_gpu("GPU-5") == []
    assert Reservation().add("GPU-5", 1.0)


def test_a_share_is_told_with_the_one_who_has_it():
    kept = []
    for run, share in ((1, 0.25), (2, 0.5)):
        reservation = Reservation()
        assert reservation.add("GPU-6", share)
        reservation.describe(Holder.current(pid=100 + run, run=run, sweep="é" * 300))
        kept.append(reservation)
    assert [(part.what, part.holder.run) for part in reserved_gpu("GPU-6")] == [
        ("0.25 of GPU-6", 1),
        ("0.5 of GPU-6", 2),
    ]
    [first, _] = all_reserved()
    assert first.plain()["sweep"] == "é" * 80


LATE = b'{"pid": 1, "parent": 1, "uid": 0, "run": 1, "sweep": "", "since": 1e15}'


@pytest.mark.parametrize("text", [b"", b"{}", b"[1]", b"\xff", b'{"pid": "x"}', b"[" * 250, LATE])
def test_a_record_of_anybody_is_only_read(text):
    file = LockFile("GPU-8")
    assert file.lock(0, 1000)
    assert reserved_gpu("GPU-8")[0].holder.describe() == "a process without a record"
    os.pwrite(file.descriptor, text.ljust(256), 1 << 16)
    assert reserved_gpu("GPU-8")[0].holder.describe() == "a process without a record"


def test_a_lock_without_an_end_leaves_nothing_and_stops_nobody():
    """As `fcntl.lockf` makes it, which any program may call on these files."""
    file = LockFile("GPU-9")
    assert file.lock(0, 0)
    assert not Reservation().add("GPU-9", 0.5)
    assert [part.what for part in all_reserved()] == ["GPU-9"]
