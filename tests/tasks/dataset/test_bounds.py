"""Data files that hold, nest or declare more than they seem to."""

from __future__ import annotations

import json
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from advsweep.errors import AdvsweepWarning, ConfigError
from advsweep.tasks import dataset_rows as bounds
from advsweep.tasks.base import Split
from advsweep.tasks.dataset import Dataset
from advsweep.tasks.dataset_rows import RowSource

pytestmark = pytest.mark.security


def read(path: Path) -> list[dict[str, Any]]:
    return RowSource(str(path)).read("train")


@pytest.mark.parametrize(
    ("value", "words"),
    [
        ("[" * 100_000 + "]" * 100_000, "row 2: .*fewer lists and objects"),
        ("[" * 200 + "]" * 200, "row 2: .*fewer lists and objects"),
        ('{"a":' * 200 + "1" + "}" * 200, "row 2: .*fewer lists and objects"),
        ("9" * 5_000, "row 2: .*4300 digits"),
    ],
)
def test_row_that_is_too_much_is_named(tmp_path: Path, value: str, words: str) -> None:
    path = tmp_path / "train.jsonl"
    path.write_text(f'{{"question": "1", "answer": 1}}\n{{"question": {value}}}\n')
    with pytest.raises(ConfigError, match=words):
        read(path)


def test_file_that_unpacks_to_a_thousand_times_its_size_is_refused_early(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A question that a dictionary holds once makes 10 MB of 2,000 rows, in a file of 2 kB."""
    pyarrow, parquet = (pytest.importorskip(f"pyarrow{name}") for name in ("", ".parquet"))
    questions = pyarrow.DictionaryArray.from_arrays(pyarrow.array([0] * 2000), ["x" * 5000])
    path = tmp_path / "train.parquet"
    parquet.write_table(pyarrow.table({"question": questions}), path, compression="zstd")
    fold = 1000 * path.stat().st_size
    assert fold < 2000 * 5000
    assert len(read(path)) == 2000  # little in all
    bounds._from_file.cache_clear()
    monkeypatch.setattr(bounds, "_SUSPECT_BYTES", 1)
    with pytest.raises(ConfigError, match=f"expected at most {fold:,} bytes"):
        read(path)


def test_file_above_the_limit_is_refused_unless_allowed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "train.jsonl"
    path.write_text('{"question": "1"}\n' * 10)
    monkeypatch.setenv(bounds.MAX_BYTES_VARIABLE, "100")
    with pytest.raises(
        ConfigError, match=f"at most 100 bytes, got 180.*{bounds.MAX_BYTES_VARIABLE}"
    ):
        read(path)
    monkeypatch.setenv(bounds.MAX_BYTES_VARIABLE, "1000")
    assert len(read(path)) == 10
    monkeypatch.setenv(bounds.MAX_BYTES_VARIABLE, "1 GiB")
    path.touch()
    os.utime(path, ns=(1, 1))
    with pytest.raises(ConfigError, match="whole number of bytes"):
        read(path)


Write = Callable[[Path, dict[str, Any]], Path]


@pytest.fixture
def written() -> Write:
    pyarrow = pytest.importorskip("pyarrow")
    parquet = pytest.importorskip("pyarrow.parquet")

    def write(path: Path, columns: dict[str, Any]) -> Path:
        parquet.write_table(pyarrow.table(columns), path, compression="zstd")
        return path

    return write


def test_parquet_file_of_some_kilobytes_with_many_megabytes_is_refused(
    tmp_path: Path, written: Write, monkeypatch: pytest.MonkeyPatch
) -> None:
    import numpy as np
    import pyarrow as pa

    # One text of 100 kB for each of 2,000 rows, as a dictionary with one entry.
    texts = pa.DictionaryArray.from_arrays(np.zeros(2_000, np.int32), ["x" * 100_000])
    path = written(tmp_path / "train.parquet", {"question": texts})
    assert path.stat().st_size < 10_000
    monkeypatch.setenv(bounds.MAX_BYTES_VARIABLE, "50000000")
    with pytest.raises(ConfigError, match="at most 50,000,000 bytes, got 5"):
        read(path)


def test_parquet_file_of_many_rows_is_refused_before_it_is_read(
    tmp_path: Path, written: Write, monkeypatch: pytest.MonkeyPatch
) -> None:
    import pyarrow as pa

    path = written(tmp_path / "train.parquet", {"question": pa.nulls(1_000_000)})
    monkeypatch.setenv(bounds.MAX_BYTES_VARIABLE, "100000000")
    with pytest.raises(ConfigError, match="in 1000000 rows"):
        read(path)


def task(tmp_path: Path, rows: list[dict[str, Any]], **fields: Any) -> Dataset:
    path = tmp_path / "train.jsonl"
    path.write_text("".join(f"{json.dumps(row)}\n" for row in rows))
    names = {"held_out_split": "", "held_out": 1, **fields}
    return Dataset(data=str(path), **names)


@pytest.mark.parametrize(
    ("written", "level"),
    [
        ("Level 3", 3),
        (3.0, 3),
        ("level 123456789  ", 123456789),
        ("9" * 1_000_000, None),
        ("9" * 1_000_000 + "x", None),
        (10**4_000, None),
        (1e300, None),
        ("level 1234567890", None),
    ],
)
def test_level_of_many_digits_is_none(tmp_path: Path, written: Any, level: int | None) -> None:
    rows = [{"question": f"{i}", "answer": "1", "level": 1} for i in range(3)]
    rows.append({"question": "q", "answer": "1", "level": written})
    made = task(tmp_path, rows, level_column="level")
    if level is None:
        with pytest.warns(AdvsweepWarning, match="1 training problem, without a level"):
            problems = made.problems(Split.TRAIN)
    else:
        problems = made.problems(Split.TRAIN)
    known = {p.level for split in Split for p in made.problems(split)}
    assert problems
    assert known == {1} | ({level} - {None})


@pytest.mark.parametrize("answer", [5, -1, 10**9])
def test_place_of_no_option_is_refused(tmp_path: Path, answer: int) -> None:
    rows = [{"question": f"{i}", "answer": answer, "options": list("abcd")} for i in range(3)]
    with pytest.raises(ConfigError, match="0 to 3, its letter or its text, in 'answer' of row 1"):
        task(tmp_path, rows, options_column="options").problems(Split.TRAIN)


def test_messages_are_short(tmp_path: Path) -> None:
    rows = [{"question": ["x" * 1_000_000], "answer": "1"}] * 3
    with pytest.raises(ConfigError, match="question_column") as raised:
        task(tmp_path, rows).problems(Split.TRAIN)
    assert len(str(raised.value)) < 300


@pytest.mark.parametrize("make", [os.mkfifo, lambda path: path.symlink_to("/dev/zero")])
def test_what_is_no_file_is_not_read(tmp_path: Path, make: Callable[[Path], None]) -> None:
    make(tmp_path / "odd.jsonl")
    with pytest.raises(ConfigError, match="it is neither"):
        read(tmp_path / "odd.jsonl")


def test_links_that_lead_nowhere_do_no_harm(tmp_path: Path) -> None:
    made = task(tmp_path, [{"question": f"{i}", "answer": "1"} for i in range(3)])
    (tmp_path / "loop").symlink_to(tmp_path / "loop")
    (tmp_path / "gone").symlink_to(tmp_path / "nothing")
    (tmp_path / "circle").symlink_to(tmp_path)
    os.mkfifo(tmp_path / "test.jsonl")
    made.data = str(tmp_path)
    assert len(made.problems(Split.TRAIN)) == 2
