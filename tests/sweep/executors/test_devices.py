"""Which GPUs there are, as nvidia-smi lists them, and which a run is given."""

from __future__ import annotations

import subprocess

import pytest

from advsweep.sweep.executors import devices as device_module
from advsweep.sweep.executors.devices import (
    Device,
    DevicePool,
    room,
    select,
    visible_devices,
)
from advsweep.sweep.executors.reservations import reserve

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
        if allocation is None:
            return None
        pool.give_back(allocation)
        return allocation.devices

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
        assert allocation.devices == ("0",)
        assert books.taken.total() == 1
        books.give_back(allocation)
    monkeypatch.setattr("advsweep.sweep.executors.devices.MEMORY_SECONDS", 0.0)
    assert books.take() is None


# Across processes


def test_no_device_has_two_runs_of_two_sweeps(monkeypatch):
    monkeypatch.setattr(device_module, "visible_devices", lambda: [a100("GPU-1"), a100("GPU-2")])
    one, other = DevicePool(1), DevicePool(1)
    first, second = one.take(), other.take()
    assert first is not None
    assert second is not None
    assert {*first.devices, *second.devices} == {"GPU-1", "GPU-2"}
    assert one.take() is other.take() is None
    other.give_back(second)
    again = one.take()
    assert again is not None
    assert again.devices == second.devices


def test_an_index_is_the_device_that_it_names(monkeypatch):
    monkeypatch.setattr(device_module, "visible_devices", lambda: [Device("0", uuid="GPU-7")])
    assert DevicePool(1).take() is not None
    assert reserve(["GPU-7"], 0.1) is None


@pytest.mark.parametrize(("share", "fits"), [(1.0, 1), (0.5, 2), (1 / 3, 3), (0.3, 3), (0.1, 10)])
def test_shares_of_a_device_never_exceed_it(share, fits):
    held = [reserve(["GPU-3"], share) for _ in range(fits + 1)]
    assert all(held[:fits])
    assert held[fits] is None
    assert reserve(["GPU-4", "GPU-3"], 1.0) is None
    # What was reserved before the one that failed is free again.
    assert reserve(["GPU-4"], 1.0) is not None


def test_a_reservation_lasts_as_long_as_the_run_and_no_longer():
    """A scheduler that is killed leaves a run for a moment; a run that is killed leaves nothing."""
    reservation = reserve(["GPU-5"], 1.0)
    assert reservation is not None
    run = subprocess.Popen(
        ["sleep", "100"], pass_fds=reservation.descriptors, stdin=subprocess.DEVNULL
    )
    reservation.release()
    assert reserve(["GPU-5"], 0.2) is None
    run.kill()
    run.wait()
    assert reserve(["GPU-5"], 1.0) is not None


def test_a_name_is_no_path(tmp_path):
    assert reserve(["../../evil/GPU"], 1.0) is not None
    assert [path.name for path in (tmp_path / "runtime").iterdir()] == [".._.._evil_GPU.lock"]
