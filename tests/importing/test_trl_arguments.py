"""Arguments in a pickle: read as plain data, whatever else it would do."""

from __future__ import annotations

import contextlib
import dataclasses
import enum
import os
import pickle
import zipfile
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from advsweep.logs.pickles import plain_pickle
from advsweep.logs.trl import read_arguments


class Scheduler(enum.Enum):
    LINEAR = "linear"


@dataclasses.dataclass
class Arguments:
    seed: int = 42
    learning_rate: float = 1e-6
    loss_type: str = "dapo"
    scheduler: Scheduler = Scheduler.LINEAR
    weights: list[float] = dataclasses.field(default_factory=lambda: [1.0, 0.2])
    # A value that is the name of another argument.
    run_name: str = "seed"


class Evil:
    def __init__(self, mark: Path) -> None:
        self.mark = mark

    def __reduce__(self) -> Any:
        return os.system, (f"touch {self.mark}",)


def write(folder: Path, value: Any, protocol: int = 2) -> Path:
    """Writes a pickle as torch does."""
    file = folder / "training_args.bin"
    with zipfile.ZipFile(file, "w") as archive:
        archive.writestr("training_args/data.pkl", pickle.dumps(value, protocol))
        archive.writestr("training_args/version", "3")
    return file


@pytest.mark.parametrize("protocol", [2, 3, 4, 5])
def test_attributes_of_an_object_are_read(tmp_path: Path, protocol: int) -> None:
    write(tmp_path, Arguments(), protocol)
    assert read_arguments(tmp_path) == {
        "seed": 42,
        "learning_rate": 1e-6,
        "loss_type": "dapo",
        "scheduler": None,
        "weights": [1.0, 0.2],
        "run_name": "seed",
    }


@pytest.mark.security
def test_nothing_in_a_pickle_is_called(tmp_path: Path) -> None:
    mark = tmp_path / "mark"
    write(tmp_path, {"seed": 3, "x": Evil(mark), "loss_type": "grpo"})
    assert read_arguments(tmp_path) == {"seed": 3, "x": None, "loss_type": "grpo"}
    write(tmp_path, Evil(mark))
    assert read_arguments(tmp_path) == {}
    assert not mark.exists()


def test_the_newest_checkpoint_that_can_be_read_counts(tmp_path: Path) -> None:
    for step in (9, 10, 11):
        folder = tmp_path / f"checkpoint-{step}"
        folder.mkdir()
        file = write(folder, {"seed": step})
    file.write_bytes(file.read_bytes()[:-30])
    assert read_arguments(tmp_path) == {"seed": 10}


plain = st.recursive(
    st.none() | st.booleans() | st.integers(-(2**100), 2**100) | st.floats(allow_nan=False)
    | st.text(max_size=300),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(max_size=3), inner),
    max_leaves=12,
)  # fmt: skip


@given(st.binary(max_size=200), st.integers(0, 400), st.integers(0, 255))
def test_any_bytes_are_read_or_refused(tail: bytes, place: int, byte: int) -> None:
    data = bytearray(pickle.dumps([Arguments(), {"a": (1, 2)}], 4) + tail)
    data[place % len(data)] = byte
    for some in (bytes(data), tail):
        with contextlib.suppress(ValueError, LookupError, TypeError):
            plain_pickle(some)
