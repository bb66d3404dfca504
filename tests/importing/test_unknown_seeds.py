"""Seeds that nobody knows: no command pairs runs by them, whatever their files are called."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from pathlib import Path

import pandas as pd
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy import stats

import advsweep
from advsweep.importing import ImportRequest, import_runs
from advsweep.logs import READERS
from advsweep.logs.names import NamePattern
from advsweep.report.claims.assertions import ClaimVerdict, evaluate_assertion, parse_assertion
from advsweep.report.claims.sentences import lay_out_short
from advsweep.report.data.export import export_tables
from advsweep.report.data.runs import read_runs
from advsweep.report.figures.comparisons import forest
from advsweep.report.figures.data import FigureData, NamedRuns
from advsweep.report.tables.build import build_report
from advsweep.report.tables.cells import make_cell
from advsweep.report.tables.designs import Spreads
from advsweep.report.tables.render import render, report_data
from advsweep.report.tables.request import ReportRequest
from advsweep.report.tables.types import Report, Row
from advsweep.statistics import compare_seeds
from advsweep.store import Store
from advsweep.store.checks import check_store
from advsweep.store.seeds import UnknownSeed

# Each of rloo is above one of grpo by about as much: paired by their order they would differ
# significantly, while two samples of such a spread do not.
VALUES = {"grpo": (0.2, 0.4, 0.6, 0.8), "rloo": (0.22, 0.419, 0.621, 0.82)}
OUTCOME = "reward/mean@end"


def write_logs(
    folder: Path, values: Mapping[str, Sequence[float]], seeds: Sequence[int | None] = ()
) -> Path:
    """Write a log of twelve steps for each value; those with a seed say so."""
    for estimator, own in values.items():
        for place, value in enumerate(own):
            lines: list[dict[str, object]] = [{"config": {"estimator": estimator}}]
            if place < len(seeds) and seeds[place] is not None:
                lines = [{"config": {"estimator": estimator, "seed": seeds[place]}}]
            lines += [{"step": step, "reward": value} for step in range(1, 13)]
            file = folder / f"{estimator}_{place}.jsonl"
            file.parent.mkdir(parents=True, exist_ok=True)
            file.write_text("".join(json.dumps(line) + "\n" for line in lines))
    return folder


def take(store: Store, source: Path, **options) -> Report:
    import_runs(store, READERS.build("jsonl"), str(source), ImportRequest(**options))
    return build_report(store, ReportRequest())


def test_runs_of_unknown_seeds_are_compared_by_welch(store, tmp_path):
    report = take(store, write_logs(tmp_path / "logs", VALUES))
    (difference,) = report.differences
    found = difference.comparison
    expected = stats.ttest_ind(VALUES["rloo"], VALUES["grpo"], equal_var=False)
    low, high = expected.confidence_interval()
    assert not found.paired
    assert (found.p_value, found.low, found.high) == pytest.approx((expected.pvalue, low, high))
    assert found.p_value > 0.9
    # Paired in the order of their names they would differ.
    assert stats.ttest_rel(VALUES["rloo"], VALUES["grpo"]).pvalue < 0.001
    assert report_data(report)["rows"][0]["seeds"] == [None] * 4
    for form in ("table", "markdown", "latex"):
        text = render(report, form)
        assert "seeds unknown: not paired: grpo (4), rloo (4); differences are by Welch" in text
        assert "paired by seed" not in text


def test_no_assertion_holds_that_only_pairs_would_show(store, tmp_path):
    report = take(store, write_logs(tmp_path / "logs", VALUES))
    finding = evaluate_assertion(report, parse_assertion(f"{OUTCOME}[rloo] > {OUTCOME}[grpo]", "x"))
    assert finding.verdict is ClaimVerdict.CANNOT_TELL
    assert "unpaired (Welch's t-test)" in finding.reason
    sums = f"{OUTCOME}[rloo] - {OUTCOME}[grpo] > 0.5*{OUTCOME}[grpo] - 0.5*{OUTCOME}[rloo]"
    finding = evaluate_assertion(report, parse_assertion(sums, "x"))
    assert finding.verdict is ClaimVerdict.CANNOT_TELL


def test_figures_do_not_pair_them_either(store, tmp_path):
    take(store, write_logs(tmp_path / "logs", VALUES))
    chart = forest(FigureData(store, NamedRuns(read_runs(store, None), "x")))
    (record,) = chart.records
    assert not record["paired"]
    assert any("seeds unknown: not paired" in note for note in chart.notes)


def test_names_of_logs_decide_nothing(store, tmp_path):
    """The same logs under names of another order: the same rows, baseline and numbers."""
    first = write_logs(tmp_path / "a" / "logs", VALUES)
    renamed = tmp_path / "b" / "logs"
    renamed.mkdir(parents=True)
    for place, file in enumerate(sorted(first.iterdir(), reverse=True)):
        file_of_same_content = renamed / f"run{place}.jsonl"
        file_of_same_content.write_text(file.read_text())
    one = take(store, first, sweep="one")
    take(store, renamed, sweep="two")
    reports = [build_report(store, ReportRequest(sweep)) for sweep in ("one", "two")]
    described = [{**report_data(report), "provenance": None} for report in reports]
    assert described[0] == described[1]
    assert reports[0].baseline == one.baseline == "grpo"


def test_known_seeds_of_some_runs_are_paired_alone(store, tmp_path):
    values = {"grpo": (0.2, 0.4, 0.6, 0.1), "rloo": (0.3, 0.51, 0.72, 0.9)}
    report = take(store, write_logs(tmp_path / "logs", values, [0, 1, 2]))
    (difference,) = report.differences
    # .1, .11 and .12: their mean is .11. The fourth run of each row is in its mean alone.
    assert difference.comparison.paired
    assert (difference.comparison.difference, difference.comparison.n) == (pytest.approx(0.11), 3)
    assert report.rows[0].cells[OUTCOME].mean == pytest.approx(1.3 / 4)
    text = render(report, "table")
    assert "seeds unknown: not paired: grpo (1 of 4), rloo (1 of 4); rows that share" in text


def test_an_arm_of_known_seeds_and_one_of_unknown_are_no_pairs(store, tmp_path):
    write_logs(tmp_path / "logs", {"grpo": VALUES["grpo"]}, [0, 1, 2, 3])
    report = take(store, write_logs(tmp_path / "logs", {"rloo": VALUES["rloo"]}))
    (difference,) = report.differences
    assert not difference.comparison.paired
    assert "seeds unknown: not paired: rloo (4); differences" in render(report, "table")


def test_a_seed_that_two_runs_have_is_one_replicate_and_unknown_ones_are_several(store, tmp_path):
    write_logs(tmp_path / "logs", {"grpo": (0.2, 0.4, 0.5)}, [0, 0, 1])
    write_logs(tmp_path / "logs", {"rloo": (0.5, 0.5, 0.5)})
    rows = take(store, tmp_path / "logs").rows
    assert [(row.n, row.runs, row.unknown_seeds) for row in rows] == [(2, 3, 0), (3, 3, 3)]
    assert rows[0].cells[OUTCOME].mean == pytest.approx((0.3 + 0.5) / 2)


def test_ranks_and_pooled_spreads_do_not_pair_them(store, tmp_path):
    values = {**VALUES, "fade": (0.24, 0.44, 0.64, 0.85)}
    take(store, write_logs(tmp_path / "logs", values))
    report = build_report(store, ReportRequest(rank=OUTCOME))
    assert {(own.low, own.high) for own in report.ranks.values()} == {(1, 3)}
    assert any("Welch's of rows with unknown seeds" in remark for remark in report.remarks)
    spreads = Spreads(report.arms)
    assert spreads.pooled(report.rows[0], report.rows[1], OUTCOME) is None


def test_frames_have_no_seed_where_nobody_knows_it(store, tmp_path):
    take(store, write_logs(tmp_path / "logs", {"grpo": (0.2, 0.4)}, [7]))
    runs = advsweep.load_runs(store)
    assert runs["seed"].dtype == "Int64"
    assert runs["seed"].tolist() == [7, pd.NA]
    assert advsweep.load_metrics(store)["seed"].isna().sum() == 12
    assert advsweep.load_runs(store, where="seed=7")["run"].tolist() == [1]
    assert advsweep.load_runs(store, where="seed!=7").empty
    export_tables(store, read_runs(store, None), tmp_path / "tables", "csv")
    exported = pd.read_csv(tmp_path / "tables" / "runs.csv")
    assert exported["seed"].isna().tolist() == [False, True]


def test_a_store_with_unknown_seeds_can_be_merged(store, tmp_path):
    take(store, write_logs(tmp_path / "logs", {"grpo": (0.2, 0.4)}))
    with store.database.read() as connection:
        check_store(store, connection)


def test_a_pattern_without_a_seed_leaves_it_unknown(store, tmp_path):
    """A run's own name is no setting: its runs are replicates."""
    logs = write_logs(tmp_path / "logs", VALUES)
    report = take(store, logs, pattern=NamePattern("{estimator}_{run}"))
    assert [(row.group, row.n) for row in report.rows] == [
        ({"estimator": "grpo"}, 4),
        ({"estimator": "rloo"}, 4),
    ]


@given(
    st.lists(st.integers(0, 5) | st.none(), max_size=8),
    st.lists(st.integers(0, 5) | st.none(), max_size=8),
)
def test_only_known_seeds_pair(first, second):
    """A comparison is paired exactly if both have two known seeds in common."""
    samples = []
    for offset, seeds in ((0, first), (100, second)):
        keys = [UnknownSeed(offset + i) if seed is None else seed for i, seed in enumerate(seeds)]
        samples.append({key: float(i) for i, key in enumerate(keys)})
    shared = (set(first) & set(second)) - {None}
    found = compare_seeds(*samples)
    assert found.paired == (len(shared) > 1)
    if found.paired:
        assert found.n == len(shared)


@given(st.lists(st.floats(-1e3, 1e3), min_size=2, max_size=9), st.randoms())
def test_numbers_do_not_depend_on_the_order_of_runs(values, random):
    other = random.sample(values, len(values))
    cells = [make_cell(values), make_cell(other)]
    assert (cells[0].mean, cells[0].low, cells[0].high) == (
        cells[1].mean, cells[1].low, cells[1].high,
    )  # fmt: skip
    rows = [
        Row({"estimator": "grpo"}, len(own), tuple(map(UnknownSeed, range(len(own)))), {"x": cell})
        for own, cell in zip((values, other), cells, strict=True)
    ]
    fixed = {i: float(i) for i in range(5)}
    assert str(compare_seeds(rows[0].by_seed("x"), fixed)) == str(
        compare_seeds(rows[1].by_seed("x"), fixed)
    )


@pytest.mark.parametrize(
    ("seeds", "unit"), [((), "runs"), ((0, 1, 2), "runs"), ((0, 1, 2, 3), "seeds")]
)
def test_means_are_over_runs_where_seeds_are_unknown(store, tmp_path, seeds, unit):
    report = take(store, write_logs(tmp_path / "logs", VALUES, seeds))
    short = lay_out_short(report)
    assert any(note.startswith(f"means over 4 {unit};") for note in short.notes)
    assert f"half the 95 % Student t interval over {unit}; n: runs" in render(report)


def test_a_reward_before_the_last_steps_is_shown(store, tmp_path):
    lines = [
        {"current_steps": 10, "loss": 0.5, "reward": 0.25},
        {"current_steps": 20, "loss": 0.5, "reward": 0.75},
        {"current_steps": 30, "loss": 0.5, "reward": None},
    ]
    log = tmp_path / "trainer_log.jsonl"
    log.write_text("".join(json.dumps(line) + "\n" for line in lines))
    report = take(store, log)
    assert report.rows[0].cells["reward/mean@last"].mean == 0.75
