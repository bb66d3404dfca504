"""docs/race.md: its tables are those of the simulation that is committed."""

from __future__ import annotations

import csv
import importlib.util
import sys
from pathlib import Path

import pytest

from advsweep.statistics.racing import failure_bound

ROOT = Path(__file__).parents[1]
FOLDER = ROOT / "experiments" / "race"
PAGE = (ROOT / "docs" / "race.md").read_text(encoding="utf-8")


def read(name):
    with (FOLDER / name).open() as file:
        return list(csv.DictReader(file))


def percent(value):
    return f"{100 * float(value):.1f}"


def number(value):
    return f"{float(value):g}"


def errors():
    for row in read("errors.csv"):
        shares = [percent(row["sequences"]), percent(row["t_tests"])]
        yield [row["values"], row["arms"], row["races"], *shares]


def seeds():
    for row in read("seeds.csv"):
        margin = "none" if row["margin"] == "0" else row["margin"]
        yield [
            *(row["arms"], number(row["effect"]), margin, row["fixed"], row["known"] or "–"),
            *(f"{number(row['median'])} ({number(row['low'])} to {number(row['high'])})",),
            *(number(row["saved"]), percent(row["power"]), percent(row["equal"])),
        ]


def rare():
    for row in read("rare.csv"):
        shares = [percent(row["equal"]), percent(row["below"])]
        yield [row["sd"], row["arms"], row["races"], *shares, number(row["seeds"])]


def trained():
    for row in read("trained.csv"):
        verdicts = [percent(row[key]) for key in ("above", "below")]
        median = f"{number(row['median'])} ({number(row['low'])} to {number(row['high'])})"
        yield [row["arm"], f"{float(row['effect']):.1f}", *verdicts, median, number(row["saved"])]


@pytest.mark.parametrize("rows", [errors, rare, seeds, trained])
def test_the_tables_are_those_of_the_simulation(rows):
    for row in rows():
        assert f"| {' | '.join(row)} |" in PAGE.splitlines()


def test_no_simulated_race_of_equal_arms_errs_more_often_than_alpha():
    for row in read("errors.csv"):
        # The page says where this fails: a difference that is itself skewed.
        is_skewed = row["values"].startswith("skewed differences")
        assert (float(row["sequences"]) <= 0.05) is not is_skewed
    [alike] = [row for row in read("trained.csv") if row["arm"].endswith("(A/A)")]
    assert float(alike["above"]) + float(alike["below"]) <= 0.05


def test_the_page_says_how_often_verdicts_are_false_outside_their_assumptions():
    skewed = [row for row in read("errors.csv") if row["values"].startswith("skewed differences")]
    shares = [float(row["sequences"]) for row in skewed]
    assert shares == sorted(shares)
    assert f"different in {percent(shares[0])} to {percent(shares[-1])} % of races" in PAGE
    for row in read("rare.csv"):
        # The mean loss is beyond the margin, so that "equal" is false.
        assert float(row["failing"]) * float(row["loss"]) > float(row["margin"])
        assert float(row["equal"]) > 0.05


@pytest.mark.parametrize(("seeds", "words"), [(5, "up to 45 % of runs"), (12, "of up to 22 %")])
def test_the_page_says_what_equal_arms_leave_open(seeds, words):
    bound = failure_bound(0, seeds)
    assert f"{round(100 * bound)} %" in words
    assert words in PAGE
    assert failure_bound(0, 29) <= 0.1 < failure_bound(0, 28)


def test_a_piece_of_the_simulation_runs(tmp_path, monkeypatch):
    spec = importlib.util.spec_from_file_location("simulate_races", FOLDER / "simulate.py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    figure = tmp_path / "race.svg"
    options = ["--races", "2", "--output", str(tmp_path), "--figure", str(figure)]
    monkeypatch.setattr(sys, "argv", ["simulate.py", *options])
    module.main()
    for name in ("errors.csv", "rare.csv", "seeds.csv", "trained.csv"):
        made, kept = ((folder / name).read_text().splitlines() for folder in (tmp_path, FOLDER))
        assert (made[0], len(made)) == (kept[0], len(kept))
    assert figure.stat().st_size > 10_000
