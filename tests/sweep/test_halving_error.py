"""What docs/fair.md says of the error of halving."""

from __future__ import annotations

import csv
import re
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
NAMES = {"full grid": "grid", "halving": "halving"}

# The runs of an arm, the share of best choices in %, and the loss, by curves, method and seeds.
Recorded = dict[tuple[str, str, int], tuple[int, float, float]]


@pytest.fixture(scope="module")
def recorded() -> Recorded:
    with (ROOT / "benchmarks" / "halving.csv").open(newline="") as file:
        return {
            (row["curves"], row["method"], int(row["seeds"])): (
                int(row["runs"]),
                float(row["best"]),
                float(row["loss"]),
            )
            for row in csv.DictReader(file)
        }


@pytest.fixture(scope="module")
def page() -> str:
    text = (ROOT / "docs" / "fair.md").read_text("utf-8")
    return text[text.index("### Halving") : text.index("## Controls")]


@pytest.fixture
def halving(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.syspath_prepend(str(ROOT / "benchmarks"))
    import halving

    return halving


def test_the_table_is_that_of_the_simulation(recorded: Recorded, page: str) -> None:
    shown: Recorded = {}
    for line in re.findall(r"^\| (?:full grid|halving) .*", page, re.MULTILINE):
        name, seeds, runs, *cells = (cell.strip(" %") for cell in line.strip("|").split("|"))
        for curves, best, loss in (("arms", *cells[:2]), ("tasks", *cells[2:])):
            shown[curves, NAMES[name], int(seeds)] = (int(runs), float(best), float(loss))
    assert shown == recorded


def test_its_sentences_are_those_of_the_simulation(recorded: Recorded, page: str) -> None:
    runs, best, loss = recorded["arms", "halving", 8]
    assert f"with eight seeds {best:.0f} % and a loss of {loss:.2f} with {runs} runs" in page
    runs, best, loss = recorded["arms", "grid", 8]
    assert f"where the grid has {best:.0f} % and {loss:.2f} with {runs}" in page
    runs, best, loss = recorded["arms", "grid", 5]
    assert f"the grid of {runs} runs has {best:.0f} % and {loss:.2f}" in page
    assert max(loss for _, _, loss in recorded.values()) < 0.5
    for curves in ("arms", "tasks"):
        for seeds in (2, 3, 4, 8):
            _, best, loss = recorded[curves, "halving", seeds]
            _, grid_best, grid_loss = recorded[curves, "grid", seeds]
            assert abs(best - grid_best) <= 1
            assert abs(loss - grid_loss) <= 0.015


def test_other_rates_lead_before_the_last_step(page: str) -> None:
    scores: dict[tuple[str, str, int], dict[float, list[float]]] = {}
    with (ROOT / "experiments" / "leaderboard" / "runs.csv").open(newline="") as file:
        for row in csv.DictReader(file):
            if row["sweep"].endswith("-tuning") and row["step"] in ("64", "150"):
                arm = row["row"].replace(f" optimizer.lr={row['optimizer.lr']}", "")
                curve = scores.setdefault((row["sweep"], arm, int(row["step"])), {})
                curve.setdefault(float(row["optimizer.lr"]), []).append(float(row["pass@1"]))

    def best_rate(sweep: str, arm: str, step: int) -> float:
        curve = scores[sweep, arm, step]
        return max(sorted(curve), key=lambda rate: sum(curve[rate]) / len(curve[rate]))

    arms = [(sweep, arm) for sweep, arm, step in scores if step == 150]
    pairs = [(best_rate(*arm, 64), best_rate(*arm, 150)) for arm in arms]
    other = sum(early != last for early, last in pairs)
    larger = sum(early > last for early, last in pairs)
    assert (
        f"after 64 of 150 steps, the best rate was another one for {other} of the {len(arms)} arms"
    ) in page
    assert f"a larger one for {larger}." in page


@pytest.mark.parametrize("curves", ["arms", "tasks"])
@pytest.mark.parametrize(("method", "seeds"), [("grid", 3), ("halving", 3), ("halving", 8)])
def test_a_small_simulation_agrees(
    recorded: Recorded, halving, curves: str, method: str, seeds: int
) -> None:
    drawn = halving.read_curves()[curves]
    result = halving.simulate(drawn, method, seeds, 2400 // len(drawn))
    runs, best, loss = recorded[curves, method, seeds]
    assert result.runs == runs
    share = best / 100
    error = 100 * (share * (1 - share) / 2400) ** 0.5
    # Three standard errors, and the rounding of the table.
    assert abs(result.best - best) < 3 * error + 0.5
    assert abs(result.loss - loss) < 3 * result.loss_error + 0.005


def test_the_simulated_choice_is_that_of_a_sweep(halving) -> None:
    """Rung by rung on paper: 5 rates with 1 seed, 3 with 2, 2 with 4."""
    tune = halving.Tune(values=halving.RATES, seeds=4, halving=True)
    scores = halving.np.array(
        [
            [0.9, 0.1, 0.0, 0.0],  # leads at first, and is dropped after two seeds
            [0.8, 0.9, 0.5, 0.2],  # leads after two
            [0.7, 0.8, 0.6, 0.5],  # leads after four: the choice
            [0.1, 1.0, 1.0, 1.0],  # dropped after one seed
            [0.2, 1.0, 1.0, 1.0],
        ]
    )
    assert halving.choose(tune, scores) == 2
    assert halving.choose(halving.Tune(values=halving.RATES, seeds=4), scores) == 4
