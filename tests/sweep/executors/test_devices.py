"""Which GPUs there are, as nvidia-smi lists them, and which a run is given."""

from __future__ import annotations

import pytest

from advsweep.sweep.executors import local
from advsweep.sweep.executors.local import (
    Device,
    DevicePool,
    room,
    select,
    visible_devices,
)

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
    assert visible_devices() == [Device("1", 40960, 40000)]


def a100(name, free=40000):
    return Device(name, 40960, free)


def test_a_share_is_of_memory_that_is_free_whoever_has_the_rest(monkeypatch):
    def take(gpus, *devices, taken=""):
        monkeypatch.setattr(local, "visible_devices", lambda: devices)
        pool = DevicePool(gpus)
        pool.taken.update(taken)
        return pool.take()

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
    monkeypatch.setattr(local, "visible_devices", lambda: looks.pop(0))
    books = DevicePool(1)
    assert not books.taken.total()
    for _ in range(2):
        devices = books.take()
        assert devices == ("0",)
        assert books.taken.total() == 1
        books.taken.subtract(devices)
    monkeypatch.setattr("advsweep.sweep.executors.local.MEMORY_SECONDS", 0.0)
    assert books.take() is None
