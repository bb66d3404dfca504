"""Rows from files, folders and the hub, and what is said where there are none."""

from __future__ import annotations

import json
import sys
import types
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from advsweep.errors import ConfigError
from advsweep.tasks.dataset_rows import RowSource

ROWS = [{"question": "1 + 1?", "answer": "2"}, {"question": "2 + 2?", "answer": "4"}]
Write = Callable[..., str]


def test_json_lines_and_lists(write: Write, tmp_path: Path) -> None:
    assert RowSource(write("a.jsonl", ROWS)).read("train") == ROWS
    assert RowSource(write("a.json", ROWS)).read("train") == ROWS
    (tmp_path / "list.json").write_text(json.dumps(ROWS, indent=1))
    assert RowSource(str(tmp_path / "list.json")).read("train") == ROWS
    # A line separator of Unicode within a text ends no line of JSON.
    odd = [{"question": "a\u2028b\u0085c", "answer": "1"}]
    (tmp_path / "odd.jsonl").write_text(json.dumps(odd[0], ensure_ascii=False), encoding="utf-8")
    assert RowSource(str(tmp_path / "odd.jsonl")).read("train") == odd


def test_a_folder_has_a_file_per_split(write: Write, tmp_path: Path) -> None:
    write("set/train.jsonl", ROWS[:1])
    write("set/test-00000-of-00002.jsonl", ROWS[:1])
    write("set/test-00001-of-00002.jsonl", ROWS[1:])
    source = RowSource(str(tmp_path / "set"))
    assert source.read("train") == ROWS[:1]
    assert source.read("test") == ROWS
    with pytest.raises(
        ConfigError, match=r"a file .* of split 'dev' in .*, got test-00000-of-00002"
    ):
        source.read("dev")


@pytest.mark.parametrize("place", ["", "data", "main"])
def test_a_folder_is_laid_out_as_on_the_hub(write: Write, tmp_path: Path, place: str) -> None:
    write(f"set/{place}/test.jsonl", ROWS)
    assert RowSource(str(tmp_path / "set"), "main").read("test") == ROWS


def test_a_changed_file_is_read_again(write: Write) -> None:
    import os

    path = write("a.jsonl", ROWS)
    assert RowSource(path).read("train") == ROWS
    write("a.jsonl", ROWS[:1])
    os.utime(path, ns=(1, 1))  # the clock of a file system may be too coarse to tell
    assert RowSource(path).read("train") == ROWS[:1]


@pytest.mark.parametrize(
    ("name", "text", "message"),
    [
        ("none.jsonl", None, r"expected a file \(\.jsonl.*\), a folder .*, or hub:OWNER/NAME"),
        ("empty.jsonl", "", r"expected problems, got none: '.*empty\.jsonl' is empty"),
        ("empty.json", "[]", r"expected problems, got none"),
        ("a.jsonl", '{"a": 1}\n\n{"a": }', r"a\.jsonl', row 3: expected JSON"),
        ("a.jsonl", '{"a": 1}\n[1]', r"row 2: expected an object with columns, got '\[1\]'"),
        ("a.json", "[1", r"a\.json': expected JSON"),
    ],
)
def test_bad_files_are_refused(tmp_path: Path, name: str, text: str | None, message: str) -> None:
    if text is not None:
        (tmp_path / name).write_text(text)
    with pytest.raises(ConfigError, match=f"data: .*{message}"):
        RowSource(str(tmp_path / name)).read("train")


def test_other_bad_places_are_refused(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"data: expected a file .*there is no ''"):
        RowSource("").read("train")
    with pytest.raises(ConfigError, match=r"data: expected a file .*, got none"):
        RowSource(str(tmp_path)).read("train")
    (tmp_path / "latin.jsonl").write_bytes(b'{"a": "\xe9"}')
    with pytest.raises(ConfigError, match="UTF-8"):
        RowSource(str(tmp_path / "latin.jsonl")).read("train")


@pytest.fixture
def hub(monkeypatch: pytest.MonkeyPatch) -> list[Any]:
    """What the stand-in for datasets was asked for; it has a set of one split, and no other."""
    asked: list[Any] = []

    def load(name: str, subset: str | None, *, revision: str | None) -> dict[str, Any]:
        asked.append((name, subset, revision))
        if name == "a/down":
            raise ConnectionError("Couldn't reach the Hub\nand more")
        return {"train": ROWS}

    module = types.ModuleType("datasets")
    module.load_dataset = load  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, "datasets", module)
    monkeypatch.setattr("advsweep.tasks.dataset_rows.hub_unreachable", lambda: "")
    return asked


def test_the_hub_is_asked_for_a_set_a_subset_and_a_revision(hub: list[Any]) -> None:
    assert RowSource("hub:a/set-1@abc", "main").read("train") == ROWS
    assert RowSource("hub:a/set-2").read("train") == ROWS
    assert hub == [("a/set-1", "main", "abc"), ("a/set-2", None, None)]
    with pytest.raises(ConfigError, match=r"'hub:a/set-3' has no split 'test'; known: train"):
        RowSource("hub:a/set-3").read("test")


def test_a_hub_out_of_reach_points_to_local_files(hub: list[Any]) -> None:
    message = r"cannot load 'hub:a/down': Couldn't reach the Hub; .*task\.data=FILE_OR_FOLDER"
    with pytest.raises(ConfigError, match=message):
        RowSource("hub:a/down").read("train")


@pytest.mark.parametrize(("missing", "place"), [("datasets", "hub:a/b"), ("pyarrow", "a.parquet")])
def test_missing_packages_are_named(
    missing: str, place: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, missing, None)
    (tmp_path / "a.parquet").touch()
    place = place if place.startswith("hub:") else str(tmp_path / place)
    with pytest.raises(ConfigError, match=rf"{missing}, which is not .*'{missing}>="):
        RowSource(place).read("train")


def test_what_the_hub_has_is_here_once_it_was_loaded(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    datasets = pytest.importorskip("datasets")
    monkeypatch.setattr(datasets.config, "HF_DATASETS_CACHE", tmp_path)
    source = RowSource("hub:DigitalLearningGmbH/MATH-lighteval@main")
    assert not source.is_here
    # As the library names the folder of its copy.
    (tmp_path / "DigitalLearningGmbH___math-lighteval").mkdir()
    assert source.is_here
