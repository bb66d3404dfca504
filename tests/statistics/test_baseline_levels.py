"""What docs/error_rates.md says of the level against a noisy baseline."""

from __future__ import annotations

import csv
import re
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
RULES = ("reports", "baseline", "each", "twice", "own")
NAMES = {"alike": 1.0, "x 1.5": 1.5, "x 2": 2.0}

Found = dict[tuple[int, int, float, str], tuple[float, float]]
"""Level and power in % by arms, seeds, spread of the baseline and rule."""


@pytest.fixture(scope="module")
def recorded() -> Found:
    with (ROOT / "benchmarks" / "baseline_levels.csv").open(newline="") as file:
        return {
            (int(row["arms"]), int(row["seeds"]), float(row["baseline"]), row["rule"]): (
                float(row["level"]),
                float(row["power"]),
            )
            for row in csv.DictReader(file)
        }


@pytest.fixture(scope="module")
def page() -> str:
    text = (ROOT / "docs" / "error_rates.md").read_text("utf-8")
    return text[text.index("## A noisy baseline") :].partition("\n## ")[0]


def test_the_table_is_that_of_the_simulation(recorded: Found, page: str) -> None:
    lines = [line for line in page.splitlines() if re.match(r"\| \d", line)]
    seen: Found = {}
    for line in lines:
        arms, seeds, name, *cells = (cell.strip() for cell in line.strip("|").split("|"))
        for rule, cell in zip(RULES, cells, strict=True):
            level, power = map(float, cell.split(", "))
            seen[int(arms), int(seeds), NAMES[name], rule] = (level, power)
    assert seen == recorded


def _levels(recorded: Found, rule: str, seeds: tuple[int, ...], ratios: tuple[float, ...]) -> str:
    found = [
        level
        for (_, n, ratio, name), (level, _) in recorded.items()
        if name == rule and n in seeds and ratio in ratios
    ]
    return f"{min(found):.1f} to {max(found):.1f} %"


def test_its_sentences_are_those_of_the_simulation(recorded: Found, page: str) -> None:
    noisy = (1.5, 2.0)
    assert f"errs in {_levels(recorded, 'reports', (3, 5, 8), (1.0,))} of cases if all" in page
    assert f"in {_levels(recorded, 'reports', (5, 8), noisy)} with five seeds or more" in page
    assert f"({_levels(recorded, 'reports', (3,), noisy)} with three)" in page
    own = page[page.index("- *baseline's own*") : page.index("- *each its own*")]
    assert f"errs in {_levels(recorded, 'baseline', (3, 5, 8), noisy)} with a noisy" in own
    each = page[page.index("- *each its own*") : page.index("- *with A/A*")]
    assert f"errs in {_levels(recorded, 'each', (3,), (1.0, *noisy))} and finds" in each
    twice = page[page.index("- *with A/A*") : page.index("**Why")]
    assert f"errs in {_levels(recorded, 'twice', (3, 5, 8), noisy)} with a noisy" in twice

    def lost(seeds: int) -> set[float]:
        return {
            recorded[arms, seeds, 1.0, "reports"][1] - recorded[arms, seeds, 1.0, "baseline"][1]
            for arms in (4, 8, 17)
        }

    assert (min(lost(3)), max(lost(3)), lost(5), lost(8)) == (9, 11, {4}, {1, 2})
    powers = [v[1] for k, v in recorded.items() if k[1] == 3 and k[3] == "each"]
    assert f"finds {min(powers):.0f} to {max(powers):.0f} % of the differences" in each


@pytest.mark.parametrize(("arms", "seeds", "ratio"), [(4, 3, 1.0), (8, 3, 2.0), (8, 5, 1.5)])
def test_a_small_simulation_agrees(
    recorded: Found, arms: int, seeds: int, ratio: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.syspath_prepend(str(ROOT / "benchmarks"))
    import baseline_levels

    times = 150
    rules = ("reports", "baseline", "own", "twice")
    for rule, shares in baseline_levels.shares(arms, seeds, ratio, times, rules).items():
        for share, expected in zip(shares, recorded[arms, seeds, ratio, rule], strict=True):
            # Differences to one baseline go together: as if each table were a single draw.
            rate = expected / 100
            error = (rate * (1 - rate) / times) ** 0.5
            assert abs(share - rate) < 3 * error, (rule, share, rate)
