"""The GPUs of this machine, found without CUDA: a process that has used it cannot be forked."""

from __future__ import annotations

import re
import subprocess
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

VISIBLE = "CUDA_VISIBLE_DEVICES"
TIMEOUT_SECONDS = 60.0

_MEMORY = ("--query-gpu=uuid,memory.total,memory.free", "--format=csv,noheader,nounits")
_UUID = re.compile(r"\(UUID: (\S+)\)")


@dataclass(frozen=True)
class Device:
    """A GPU, or a MIG slice of one.

    Attributes:
        name: what `CUDA_VISIBLE_DEVICES` calls it.
        memory: all of it, in MiB; None where that is not told, as of a MIG slice.
        free: what nobody has of it at the moment, in MiB; None likewise.
    """

    name: str
    memory: int | None = None
    free: int | None = None


@dataclass(frozen=True)
class Gpu:
    """A GPU as nvidia-smi lists it: itself, and the MIG slices that it is divided into."""

    device: Device
    slices: Sequence[Device] = ()

    def usable(self) -> Sequence[Device]:
        """What CUDA programs can have of it: its slices, where there are any."""
        return self.slices or (self.device,)


def visible_devices(environment: Mapping[str, str]) -> list[Device]:
    """The devices that a process with this environment may use; none without nvidia-smi."""
    listing = _nvidia_smi("-L")
    gpus = parse(listing, _nvidia_smi(*_MEMORY)) if listing else []
    return select(gpus, environment.get(VISIBLE))


def parse(listing: str, memory: str) -> list[Gpu]:
    """Reads what `nvidia-smi -L` lists, and a table of UUID, total and free memory."""
    rows = [[cell.strip() for cell in line.split(",")] for line in memory.splitlines()]
    sizes = {row[0]: row[1:] for row in rows}
    gpus: list[Gpu] = []
    for line in listing.splitlines():
        found = _UUID.search(line)
        if found is None:
            continue
        uuid = found[1]
        if line[0].isspace():
            gpus[-1] = Gpu(gpus[-1].device, (*gpus[-1].slices, Device(uuid)))
        else:
            numbers = [int(cell) if cell.isdigit() else None for cell in sizes.get(uuid, ())]
            gpus.append(Gpu(Device(uuid, *numbers)))
    return gpus


def select(gpus: Sequence[Gpu], visible: str | None) -> list[Device]:
    """The devices that `CUDA_VISIBLE_DEVICES` leaves, read as CUDA reads it.

    Its entries are indices, or the beginnings of UUIDs, up to the first that does not exist.
    They are kept as they are: an index means to a run what it means to its parent. Its memory
    is taken to be that of nvidia-smi's device of the same index, which is right where all GPUs
    are alike or `CUDA_DEVICE_ORDER` is `PCI_BUS_ID`.
    """
    if visible is None:
        return [device for gpu in gpus for device in gpu.usable()]
    known = [device for gpu in gpus for device in (gpu.device, *gpu.slices)]
    chosen: list[Device] = []
    for entry in (part.strip() for part in visible.split(",")):
        if entry.isdecimal():
            found = [gpu.device for gpu in gpus[int(entry) :][:1]]
        else:
            found = [device for device in known if entry and device.name.startswith(entry)]
        if not found:
            break
        chosen.append(Device(entry, found[0].memory, found[0].free))
    return _distinct(chosen)


def _distinct(devices: Iterable[Device]) -> list[Device]:
    return list({device.name: device for device in devices}.values())


def _nvidia_smi(*arguments: str) -> str:
    try:
        done = subprocess.run(
            ["nvidia-smi", *arguments],
            capture_output=True,
            text=True,
            check=False,
            timeout=TIMEOUT_SECONDS,
        )
    except (OSError, subprocess.TimeoutExpired):
        return ""
    return done.stdout if done.returncode == 0 else ""
