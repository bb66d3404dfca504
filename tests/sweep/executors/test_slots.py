"""What is given out of cores and devices, and what never is."""

from __future__ import annotations

from collections import Counter
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from advsweep.sweep.executors import allocation
from advsweep.sweep.executors.allocation import CorePool, Device, Slot, SlotAllocator, pick, room
from advsweep.sweep.executors.base import Resources

SHARES = st.one_of(st.floats(0.05, 1.0), st.sampled_from([1 / 3, 1 / 7, 0.1, 0.2]))
GPUS = st.one_of(SHARES, st.integers(1, 4).map(float))


def a100(name: str, free: int | None = 40000) -> Device:
    return Device(name, 40960, free)


@given(devices=st.integers(1, 6), gpus=GPUS, runs=st.integers(1, 30), data=st.data())
def test_nothing_is_given_out_twice_and_every_run_gets_its_turn(
    devices: int, gpus: float, runs: int, data: st.DataObject
) -> None:
    known = [Device(f"GPU-{i}") for i in range(devices)]
    resources = Resources(gpus=gpus)
    books = SlotAllocator(resources, CorePool((), Path()), lambda: known)
    most = room(devices, gpus)
    held: list[Slot] = []
    placed = 0
    while most and placed < runs:
        slot = books.take()
        if slot is None:
            assert len(held) == most
            books.give_back(held.pop(data.draw(st.integers(0, len(held) - 1))))
            continue
        placed += 1
        held.append(slot)
        assert len(set(slot.devices)) == len(slot.devices) == max(1, int(gpus))
        loads = Counter(name for each in held for name in each.devices)
        assert all(count * min(gpus, 1) <= 1 + 1e-6 for count in loads.values())
        assert len(held) <= most
    if not most:
        assert gpus > devices
        assert books.take() is None


def test_the_least_loaded_device_is_taken_first() -> None:
    devices = [a100("0"), a100("1"), a100("2")]
    assert pick(devices, {"0": 0.5, "1": 0.25, "2": 0.5}, 0.5) == ("1",)
    assert pick(devices, {"1": 0.5}, 2) == ("0", "2")
    assert pick(devices, {"0": 0.1, "1": 0.5}, 2) is None


def test_a_share_is_of_memory_that_is_free_whoever_has_the_rest() -> None:
    # Half of 40,960 MiB less the tenth that may be gone are 18,432 MiB.
    assert pick([a100("0", free=18432)], {}, 0.5) == ("0",)
    assert pick([a100("0", free=18431)], {}, 0.5) is None
    assert pick([a100("0", free=18431), a100("1")], {"1": 0.5}, 0.5) == ("1",)
    assert pick([Device("MIG-0")], {}, 1) == ("MIG-0",)


@pytest.mark.parametrize(
    ("devices", "gpus", "runs"),
    [(2, 0.5, 4), (2, 1 / 3, 6), (1, 0.3, 3), (1, 0.6, 1), (4, 1, 4), (5, 2, 2), (1, 2, 0)],
)
def test_how_many_there_is_room_for(devices: int, gpus: float, runs: int) -> None:
    assert room(devices, gpus) == runs


def test_devices_are_looked_at_again_after_a_moment(monkeypatch: pytest.MonkeyPatch) -> None:
    looks: list[list[Device]] = [[a100("0", free=40000)], [a100("0", free=100)]]
    books = SlotAllocator(Resources(gpus=1), CorePool((), Path()), lambda: looks.pop(0))
    assert books.are_empty()
    for _ in range(2):
        slot = books.take()
        assert slot is not None
        assert not books.are_empty()
        books.give_back(slot)
    monkeypatch.setattr(allocation, "MEMORY_SECONDS", 0.0)
    assert books.take() is None


def test_a_slot_is_given_back_once() -> None:
    books = SlotAllocator(Resources(gpus=0.5), CorePool((), Path()), lambda: [a100("0")])
    first, second = books.take(), books.take()
    assert first is not None
    assert second is not None
    books.give_back(first)
    books.give_back(first)
    assert books.take() is not None
    assert books.take() is None


def test_cores_are_shared_only_when_all_are_in_use(tmp_path: Path) -> None:
    cores = CorePool(range(4), tmp_path)
    first, second, third = cores.take(2), cores.take(2), cores.take(1)
    assert (first, second, third) == ((0, 1), (2, 3), (0,))
    cores.give_back(second)
    assert cores.take(1) == (2,)


def test_another_sweep_takes_other_cores(tmp_path: Path) -> None:
    mine, others = CorePool(range(3), tmp_path), CorePool(range(3), tmp_path)
    assert mine.take(1) == (0,)
    assert others.take(1) == (1,)
    assert others.take(2) == (0, 2)
    # All are in use; the least used of its own are those of others.
    assert mine.take(1) == (1,)
    others.give_back((1,))
    mine.give_back((0,))
    assert others.take(1) == (1,)


def test_cores_need_no_folder_that_can_be_written(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    assert CorePool(range(2), tmp_path / "file" / "locks").take(2) == (0, 1)
