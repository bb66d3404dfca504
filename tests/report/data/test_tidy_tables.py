"""Tables of runs: the same numbers as the Python API's, in portions, in every format."""

from __future__ import annotations

import csv
import json
import math
from datetime import datetime

import pandas as pd
import pyarrow.parquet
import pytest

import advsweep
from advsweep.errors import ConfigError, ReportError
from advsweep.report.data.export import FORMATS, MANIFEST, export_tables

HOSTILE = "=1+1\x1b]52;c;eA==\x07\u202e"


@pytest.fixture
def filled(lab):
    """Three runs: replicates, and one that lacks keys and has a NaN."""
    points = [("reward/mean", step, step / 4) for step in (1, 2, 3)]
    lab.run("grpo", 0, points=points, estimator__eps=0.5)
    lab.run("grpo", 1, points=[*points, ("collapse/acr", 2, 0.125)], estimator__eps=0.25)
    lab.run("fade", 0, points=[("reward/mean", 1, math.nan)], solved=(4, 1), estimator__h0="auto")
    return lab.store


def written(store, folder, form):
    return export_tables(store, store.runs.select(), folder, form)


def test_problems_and_scores_are_those_of_the_store(filled, tmp_path):
    rows = written(filled, tmp_path / "out", "parquet")
    problems = pd.read_parquet(tmp_path / "out" / "problems.parquet")
    api = advsweep.load_problems(filled)
    own = ["run", "step", "n", "c", "distinct", "unscorable"]
    assert sorted(problems[own].itertuples(index=False)) == sorted(api[own].itertuples(index=False))
    evaluations = pd.read_parquet(tmp_path / "out" / "evaluations.parquet")
    assert rows == {"runs": 3, "metrics": 8, "problems": 2 * rows["evaluations"], "evaluations": 6}
    last = evaluations[(evaluations["run"] == 3) & (evaluations["step"] > 0)].iloc[0]
    # 4 and 1 of 4 samples are correct.
    assert last["score.pass@1"] == (4 / 4 + 1 / 4) / 2
    assert (last["problems"], last["samples"], last["split"]) == (2, 8, "held_out")
    counts = problems[problems["evaluation"] == last["evaluation"]]
    assert counts["c"].tolist() == [4, 1]


def test_both_formats_say_the_same(filled, tmp_path):
    for form in FORMATS:
        written(filled, tmp_path / form, form)
    manifests = [json.loads((tmp_path / form / MANIFEST).read_text()) for form in FORMATS]
    for name, table in manifests[0]["tables"].items():
        assert {**table, "file": ""} == {**manifests[1]["tables"][name], "file": ""}
        path = tmp_path / "parquet" / f"{name}.parquet"
        frame = pd.read_parquet(path)
        # Of several runs and evaluations, which are few rows.
        assert pyarrow.parquet.ParquetFile(path).num_row_groups == 1
        with open(tmp_path / "csv" / f"{name}.csv", newline="") as file:
            header, *rows = csv.reader(file)
        assert header == [column["name"] for column in table["columns"]] == list(frame)
        assert len(rows) == len(frame) == table["rows"]
        for column in table["columns"]:
            i = header.index(column["name"])
            for row, value in zip(rows, frame[column["name"]], strict=True):
                if column["type"] == "number":
                    same = float(row[i] or "nan") == value or math.isnan(value)
                elif column["type"] == "time":
                    same = row[i] == "" or datetime.fromisoformat(row[i]) == value
                else:
                    same = row[i] == ("" if pd.isna(value) else str(value))
                assert same, (column, row[i], value)


@pytest.mark.parametrize("form", list(FORMATS))
def test_the_same_runs_give_the_same_bytes(filled, tmp_path, form):
    for folder in ("one", "two", "one"):
        written(filled, tmp_path / folder, form)
    files = sorted(path.name for path in (tmp_path / "one").iterdir())
    assert len(files) == 5
    for file in files:
        assert (tmp_path / "one" / file).read_bytes() == (tmp_path / "two" / file).read_bytes()
    assert sorted(path.name for path in tmp_path.iterdir() if "." not in path.name) == [
        "one",
        "two",
    ]


@pytest.mark.parametrize(
    ("values", "kind", "shown"),
    [
        ([1, 2], "integer", [1, 2]),
        ([1, 0.5], "number", [1.0, 0.5]),
        ([True, False], "boolean", [True, False]),
        ([True, 1], "text", ["true", "1"]),
        (["a", 1], "text", ["a", "1"]),
        ([[1, 2], "a"], "text", ["[1, 2]", "a"]),
        ([2**63, 1], "number", [float(2**63), 1.0]),
        ([10**400, 1], "text", [str(10**400), "1"]),
    ],
)
def test_a_column_has_the_type_that_holds_its_values(lab, tmp_path, values, kind, shown):
    for seed, value in enumerate(values):
        lab.run("grpo", seed, their__key=value)
    for form in FORMATS:
        written(lab.store, tmp_path / form, form)
    manifest = json.loads((tmp_path / "csv" / MANIFEST).read_text())["tables"]["runs"]
    assert {"name": "config.their.key", "type": kind} in manifest["columns"]
    frame = pd.read_parquet(tmp_path / "parquet" / "runs.parquet")
    assert frame["config.their.key"].tolist() == shown


@pytest.mark.security
def test_texts_of_a_store_stay_texts(lab, tmp_path):
    lab.run("grpo", 0, points=[(HOSTILE, 1, 1.0)], sweep=HOSTILE, **{HOSTILE: HOSTILE})
    for form in FORMATS:
        written(lab.store, tmp_path / form, form)
    frame = pd.read_parquet(tmp_path / "parquet" / "runs.parquet")
    points = pd.read_parquet(tmp_path / "parquet" / "metrics.parquet")
    shown = [*frame, *points["metric"], *map(str, frame.to_numpy().ravel())]
    shown += [path.read_text("utf-8") for path in (tmp_path / "csv").iterdir()]
    shown += [(tmp_path / "parquet" / MANIFEST).read_text("utf-8")]
    assert not {"\x1b", "\x07", "\u202e"} & set("".join(shown))
    assert any("1+1\\x1b" in text for text in shown)
    with open(tmp_path / "csv" / "metrics.csv", newline="") as file:
        assert [row[1][:2] for row in csv.reader(file)] == ["me", "'="]
    assert {path.name for path in (tmp_path / "csv").iterdir()} == {
        *(f"{name}.csv" for name in ("runs", "metrics", "problems", "evaluations")),
        MANIFEST,
    }


def test_an_empty_selection_has_tables_without_rows(lab, tmp_path):
    for form in FORMATS:
        assert set(export_tables(lab.store, [], tmp_path / form, form).values()) == {0}


def test_other_files_are_not_replaced(filled, tmp_path):
    (tmp_path / "mine").mkdir()
    (tmp_path / "mine" / "runs.csv").write_text("my own")
    with pytest.raises(ReportError, match="expected a new or empty folder"):
        written(filled, tmp_path / "mine", "csv")
    assert (tmp_path / "mine" / "runs.csv").read_text() == "my own"
    with pytest.raises(ReportError, match="got a file"):
        written(filled, tmp_path / "mine" / "runs.csv", "csv")


def test_an_interrupted_export_changes_nothing(filled, tmp_path):
    written(filled, tmp_path / "out", "csv")
    before = {path: path.read_bytes() for path in (tmp_path / "out").iterdir()}

    def stop(done):
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        export_tables(filled, filled.runs.select(), tmp_path / "out", "csv", stop)
    assert {path: path.read_bytes() for path in (tmp_path / "out").iterdir()} == before
    assert {path.name for path in tmp_path.iterdir() if path.is_dir()} <= {"out", "advsweep-runs"}


def test_parquet_without_its_package_names_the_extra(filled, tmp_path, monkeypatch):
    monkeypatch.setitem(__import__("sys").modules, "pyarrow", None)
    with pytest.raises(ConfigError, match=r"install it with .*'pyarrow>=\d+'"):
        written(filled, tmp_path / "out", "parquet")
    assert not (tmp_path / "out").exists()
