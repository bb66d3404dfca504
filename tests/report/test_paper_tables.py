"""experiments/papers/tables.py: the papers' numbers, and a store's runs in their layout."""

from __future__ import annotations

import re

import pandas as pd
import pytest
import tables

from advsweep.errors import ReportError
from advsweep.report.data.columns import parse_column
from advsweep.report.data.metrics import MetricDirection

# What is bold in print, and not the best of its column, or the best and not bold, by table: the
# task, if rows have one, and the column.
WRONG_BOLD = {
    "a_grae-table2": {
        *("math pass@1", "math pass@2", "math pass@4", "math pass@128"),
        *("aime25 pass@32", "amc23 pass@64"),
    },
    "a_grae-table3": {"pass@1[mathvision]", "pass@1[ct300]"},
    "a_grae-table4": {"math pass@1", "math pass@2", "math pass@4"},
}
MODEL = "Qwen2.5-Math-1.5B"


@pytest.mark.parametrize("name", tables.TABLES)
def test_columns_have_names_of_ours_and_bold_is_the_best_but_where_the_paper_is_wrong(name):
    numbers = tables.printed(name)
    assert all(parse_column(column) is not None for column in numbers["column"].unique())
    assert tables.methods(name.partition("-")[0])
    assert not numbers.duplicated([*tables.KEYS, "column"]).any()
    matched = numbers["text"].str.fullmatch(r"[-+]?[\d.]+(±[\d.]+)?[*_]?").astype(bool)
    assert matched.all()
    numbers["value"] = numbers["text"].str.extract(r"^([-+]?[\d.]+)", expand=False).astype(float)
    numbers["bold"] = numbers["text"].str.endswith("*")
    wrong = set()
    for (_, task, column), own in numbers.groupby(["model", "task", "column"]):
        if not own["text"].str.contains(r"[*_]").any():
            continue
        higher = parse_column(column).direction is MetricDirection.HIGHER
        best = own["value"] == (own["value"].max() if higher else own["value"].min())
        if set(own[best]["method"]) != set(own[own["bold"]]["method"]):
            wrong.add(f"{task} {column}".strip())
    assert wrong == WRONG_BOLD.get(name, set())


def test_numbers_as_they_are_printed():
    numbers = tables.printed("avspo-table1").set_index(["model", "method", "column"])["text"]
    # Six models, six methods, eight averages and benchmarks, and ACR, which three methods have.
    assert len(numbers) == 36 * 8 + 18
    assert numbers["Qwen2.5-0.5B", "AVSPO", "collapse/acr"] == "0.18"
    assert numbers["Qwen2.5-0.5B", "AVSPO", "pass@1[math500]"] == "31.4"


@pytest.fixture
def store(lab, constant):
    """Three seeds each of GRPO, AVSPO and rloo on a model of the paper, on two of its tasks."""
    own = {"model": {"name": "hf", "path": f"Qwen/{MODEL}"}, "rollout": {"name": "plain"}}
    for estimator, first in (("rloo", (4, 0)), ("avspo", (4, 2)), ("grpo", (2, 0))):
        for seed in range(3):
            points = constant(collapse__acr=0.25 + seed / 100)
            run = lab.run(estimator, seed, solved=None, points=points, **own)
            for task, solved in (("math500", first), ("gsm8k", (first[0], seed))):
                lab.evaluate(run, f"{run} {task}", 20, solved, task=task)
                lab.evaluate(run, "base:aa", 0, (1, 0), task=task)
    return lab


def test_our_numbers_follow_the_printed_ones_of_the_model(store):
    table = tables.lay_out("avspo-table1", store.store)
    assert set(table.index.get_level_values("model")) == {MODEL}
    assert [names[1:] for names in table.index if names[2] == "ours"] == [
        *(("Base", "ours"), ("GRPO", "ours"), ("AVSPO", "ours"), ("rloo", "ours"))
    ]
    # MATH-500 is 2/8 for GRPO and 6/8 for AVSPO; GSM8K 2/8 to 4/8 and 4/8 to 6/8.
    columns = ["collapse/acr", "pass@1[math500]", "pass@1[gsm8k]", "pass@1[mean]"]
    texts = {names[1:]: list(row) for names, row in table[columns].iterrows()}
    assert texts["Base", "ours"] == ["–", "12.5", "12.5", "12.5"]
    assert texts["GRPO", "ours"] == ["0.260±0.025", "25.0", "37.5±31.1", "31.2±15.5"]
    assert texts["AVSPO", "ours"][1:] == ["75.0", "62.5±31.1", "68.8±15.5"]
    assert texts["GRPO", "printed"] == ["0.40", "58.6", "49.8", "33.5"]


def test_k_as_columns_and_rows_for_each_task(store):
    table = tables.lay_out("two_stage-table1", store.store)
    own = table.xs("ours", level="source")
    # The store has none of the paper's models: all are shown.
    assert "Qwen2.5-Math-7B" in table.index.get_level_values("model")
    assert own.loc[(MODEL, "math500", "Base"), "pass@1"] == "12.5"
    assert own.loc[(MODEL, "math500", "avspo"), "pass@1"] == "75.0"


def test_runs_of_a_method_must_be_replicates(store):
    own = {"model": {"name": "hf", "path": f"Qwen/{MODEL}"}, "rollout": {"name": "plain"}}
    run = store.run("grpo", 0, solved=None, group_size=16, **own)
    store.evaluate(run, "other", 20, (4, 4), task="math500")
    with pytest.raises(ReportError, match=f"got several of {re.escape(MODEL)} GRPO"):
        tables.lay_out("avspo-table1", store.store)


def test_the_command_prints_a_table(capsys, monkeypatch):
    monkeypatch.setattr("sys.argv", ["tables.py", "aapo-table2"])
    tables.main()
    out = capsys.readouterr().out
    assert "aapo-table2" in out
    assert "AAPO w/o clip" in out
    monkeypatch.setattr("sys.argv", ["tables.py", "aapo"])
    with pytest.raises(SystemExit):
        tables.main()
    assert "got aapo" in capsys.readouterr().err
    assert isinstance(tables.lay_out("aapo-table2"), pd.DataFrame)
