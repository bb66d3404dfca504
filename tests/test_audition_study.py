"""experiments/audition: its tables follow from its auditions and the leaderboard's runs."""

from __future__ import annotations

import importlib.util
import sys
from pathlib import Path

import pandas as pd
import pytest

ROOT = Path(__file__).parents[1]
FOLDER = ROOT / "experiments" / "audition"
README = (FOLDER / "README.md").read_text(encoding="utf-8")
NAMES = {
    "log_odds": "log-odds | pass@1",
    "token_entropy": "token entropy | correct-answer entropy",
    "pass@8": "pass@8 | pass@32",
}


@pytest.fixture(scope="module")
def study():
    spec = importlib.util.spec_from_file_location("validate_auditions", FOLDER / "validate.py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.fixture(scope="module")
def table():
    return pd.read_csv(FOLDER / "correlations.csv")


def test_correlations_follow_from_the_auditions(study, table, monkeypatch):
    monkeypatch.setattr(study, "DRAWS", 4000)
    auditions = pd.read_csv(FOLDER / "auditions.csv")
    assert auditions.groupby(["range", "candidate"])["seed"].nunique().eq(study.SEEDS).all()
    again = pd.DataFrame(study.correlations(auditions))
    keys = ["range", "measure", "rate", "step", "arms"]
    pd.testing.assert_frame_equal(again[keys], table[keys])
    for name, tolerance in (("correlation", 1e-3), ("low", 1e-3), ("ceiling", 1e-3), ("p", 0.03)):
        assert again[name].to_numpy() == pytest.approx(
            table[name].to_numpy(), abs=tolerance, nan_ok=True
        )


def test_the_readme_has_the_numbers_after_the_last_step(study, table):
    last = table[table["step"] == study.LAST].set_index(["range", "measure", "rate", "arms"])

    def cell(key):
        row = last.loc[key]
        return f"{row['correlation']:+.2f} [{row['low']:+.2f}, {row['high']:+.2f}]"

    for difficulty in study.RANGES:
        for measure, names in NAMES.items():
            best, some, common = (
                (difficulty, measure, *rest)
                for rest in (("best", "all"), ("best", "without failures"), ("common", "all"))
            )
            cells = [
                *(cell(best), f"{last.loc[best, 'p']:.2g}", cell(some)),
                *(f"{last.loc[some, 'p']:.2g}", cell(common), f"{last.loc[best, 'ceiling']:.2f}"),
            ]
            row = f"| {difficulty} | {names} | {' | '.join(cells)} |"
            assert row in README.splitlines(), row


def test_the_page_begins_with_the_primary_result(table):
    page = (ROOT / "docs" / "audition.md").read_text(encoding="utf-8").splitlines()[2]
    primary = table[
        (table["measure"] == "log_odds") & (table["rate"] == "best") & (table["arms"] == "all")
    ].set_index(["range", "step"])

    def words(key):
        row = primary.loc[key]
        numbers = [f"{row[name]:.2f}".replace("0.", ".") for name in ("correlation", "low", "high")]
        return f"{numbers[0]} [{numbers[1]}, {numbers[2]}]"

    for key in (("easy", 150), ("middle", 150), ("hard", 150), ("hard", 64)):
        assert words(key) in page, key


@pytest.mark.slow
def test_a_piece_of_it_runs(study, tmp_path, monkeypatch):
    pytest.importorskip("transformers")
    options = ["--smoke", "--store", str(tmp_path / "a.db"), "--output", str(tmp_path)]
    monkeypatch.setattr(sys, "argv", ["validate.py", *options])
    study.main()
    made = pd.read_csv(tmp_path / "auditions.csv")
    assert list(made.columns) == list(pd.read_csv(FOLDER / "auditions.csv").columns)
    assert made["candidate"].tolist() == ["grpo", "rloo"]
