"""Which GPUs a run may have, as nvidia-smi lists them and CUDA_VISIBLE_DEVICES leaves them."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from advsweep.sweep.executors.allocation import Device, parse, select, visible_devices

LISTING = """\
GPU 0: NVIDIA A100-SXM4-40GB (UUID: GPU-1111)
GPU 1: NVIDIA A100-SXM4-40GB (UUID: GPU-2222)
  MIG 1g.5gb      Device  0: (UUID: MIG-3333)
  MIG 2g.10gb     Device  1: (UUID: MIG-4444)
GPU 2: NVIDIA L4 (UUID: GPU-5555)
"""
MEMORY = """\
GPU-1111, 40960, 40327
GPU-2222, 40960, 40000
GPU-5555, 23034, [N/A]
"""


@pytest.mark.parametrize(
    ("visible", "names"),
    [
        (None, ["GPU-1111", "MIG-3333", "MIG-4444", "GPU-5555"]),
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
def test_visible_devices_are_those_that_cuda_would_see(
    visible: str | None, names: list[str]
) -> None:
    assert [device.name for device in select(parse(LISTING, MEMORY), visible)] == names


def test_memory_is_known_of_gpus_and_not_of_slices() -> None:
    gpus = parse(LISTING, MEMORY)
    assert select(gpus, "0,GPU-5,MIG-3333") == [
        Device("0", 40960, 40327),
        Device("GPU-5", 23034, None),
        Device("MIG-3333"),
    ]


def test_they_are_asked_of_nvidia_smi(free_memory: Callable[[int], None]) -> None:
    free_memory(123)
    assert visible_devices({}) == [Device("GPU-aaaa", 40960, 123), Device("GPU-bbbb", 40960, 40000)]
    assert visible_devices({"CUDA_VISIBLE_DEVICES": "1"}) == [Device("1", 40960, 40000)]


def test_there_are_none_without_nvidia_smi(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", "")
    assert visible_devices({}) == []
