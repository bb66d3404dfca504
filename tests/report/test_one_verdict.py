"""One comparison of one sweep has one adjusted p, whatever command and columns show it."""

from __future__ import annotations

import csv
import io
import json
import re
from collections.abc import Callable
from pathlib import Path

import pytest
import yaml
from typer.testing import CliRunner

import advsweep
from advsweep.cli.app import app
from advsweep.report.data.columns import parse_column
from advsweep.tasks.base import Split
from advsweep.tasks.countdown import Countdown

TASK = {"name": "countdown", "levels": [3], "held_out_per_level": 2}
OUTCOMES = ["pass@1", "pass@32[above=guess]", "entropy/right"]
ARMS = ["psr", "power_alpha", "fade"]
FAMILY = "9 differences: 3 primary outcomes x 3 arms"

Verdicts = dict[tuple[str, str], float]
"""The adjusted p by estimator and outcome, of a comparison with grpo."""


@pytest.fixture
def store(lab, constant):
    """Four estimators and three seeds of 128 samples, above chance; fade spreads twice as much."""
    problems = Countdown(levels=(3,), held_out_per_level=2).problems(Split.HELD_OUT)
    lab.problems, lab.samples = [(p.id, p.prompt) for p in problems], 128
    solved = {
        "grpo": [(40, 2), (44, 3), (35, 2)],
        "psr": [(42, 2), (45, 2), (37, 3)],
        "power_alpha": [(44, 4), (49, 4), (39, 5)],
        "fade": [(38, 3), (48, 2), (33, 5)],
    }
    for estimator, counts in solved.items():
        for seed, own in enumerate(counts):
            points = constant(collapse__acr=0.4 + seed / 50, optim__change_norm=2.0 + own[1] / 50)
            lab.run(estimator, seed, solved=own, points=points, task=TASK, base_solved=(30, 2))
    return lab.store


def _command(*arguments: str) -> str:
    result = CliRunner().invoke(app, [*arguments, "--store", "advsweep.db"])
    assert result.exit_code in (0, 1), result.output
    return result.output


def _of_json(*options: str) -> Verdicts:
    document = json.loads(_command("report", "demo", "--format", "json", *options))
    rows = [row["group"]["estimator"] for row in document["rows"]]
    assert document["family"]["size"] == 9
    return {
        (rows[d["row"]], d["metric"]): d["p_adjusted"]
        for d in document["differences"]
        if d["primary"]
    }


def _of_csv(*options: str) -> Verdicts:
    rows = csv.DictReader(io.StringIO(_command("report", "demo", "--format", "csv", *options)))
    return {
        (row["estimator"], outcome): float(row[f"{outcome}_p_adjusted"])
        for row in rows
        for outcome in OUTCOMES
        if row[f"{outcome}_p_adjusted"]
    }


def _of_full(*options: str) -> Verdicts:
    text = _command("report", "demo", "--full", *options)
    assert FAMILY in text
    table = text[text.index("Differences to grpo: primary outcomes") :]
    heading = next(line for line in table.splitlines() if "p adj" in line).split("  ")
    place = [name.strip() for name in heading if name.strip()].index("p adj")
    found: Verdicts = {}
    for arm in ARMS:
        for name in OUTCOMES:
            header = parse_column(name).header
            [line] = [x for x in table.splitlines() if re.match(rf"{re.escape(header)} +{arm} ", x)]
            cells = [cell for cell in re.split(r" {2,}", line) if cell]
            found[arm, name] = _read_p(cells[place])
    return found


def _of_page(*options: str) -> Verdicts:
    page = _command("report", "demo", "--format", "html", *options)
    assert FAMILY in page
    data = re.search(r'<script type="application/json" id="data">(.*?)</script>', page, re.S)[1]
    names = {parse_column(name).header: name for name in OUTCOMES}
    return {
        (line["label"], names[column["name"]]): line["p_adjusted"]
        for column in json.loads(data)["differences"]
        for line in column["lines"]
        if column["primary"]
    }


def _of_claims(*options: str) -> Verdicts:
    # Of each pair either row may be named first, and pass@32 has the differences of pass@32 above
    # guessing.
    claims = [
        {"id": f"{arm} {name}", "says": "so", "metric": metric, **pair}
        for arm in ARMS
        for name, metric in zip(OUTCOMES, ["pass@1", "pass@32", "entropy/right"], strict=True)
        for pair in [{"of": arm, "than": "grpo", "direction": "higher"}]
    ]
    claims[0] |= {"of": "grpo", "than": "psr", "direction": "lower"}
    others = [
        {"id": "another baseline", "metric": "pass@1", "of": "psr", "than": "fade"},
        {"id": "a margin", "metric": "pass@1", "of": "psr", "than": "grpo", "margin": 0.01},
    ]
    claims += [{"says": "so", "direction": "higher", **other} for other in others]
    Path("list.yaml").write_text(yaml.safe_dump({"common": {"sweep": "demo"}, "claims": claims}))
    results = json.loads(_command("claims", "list.yaml", "--format", "json", *options))["claims"]
    assert {r["family"] for r in results[:9]} == {f"{FAMILY} against grpo in demo"}
    assert [r["family"] for r in results[9:]] == [
        *(f"{FAMILY} against fade in demo", "1 test of this list")
    ]
    # With another baseline it is the report with that baseline that has the same p.
    against_fade = _of_json("--baseline", "fade", *options)
    assert results[9]["p_adjusted"] == pytest.approx(against_fade["psr", "pass@1"])
    asserted = ("--assert", "pass@1[psr] > pass@1[fade]")
    text = _command("report", "demo", *asserted, *options)
    [sentence] = [line for line in text.splitlines() if f": {asserted[1]}: " in line]
    found = _read_p(re.search(r"p adj ([<\d.]+), adjusted", sentence)[1])
    assert found == pytest.approx(against_fade["psr", "pass@1"], abs=0.0005)
    text = _command("claims", "list.yaml", *options)
    assert text.count(f"adjusted over {FAMILY} against grpo in demo") == 9
    return {tuple(r["claim"].split(" ")): r["p_adjusted"] for r in results[:9]}


def _of_api(*options: str) -> Verdicts:
    frame = advsweep.report("advsweep.db", sweep="demo").differences()
    assert frame.attrs["family"] == FAMILY
    assert frame[~frame.primary].p.isna().all()
    tested = frame[frame.primary]
    return dict(
        zip(zip(tested.estimator, tested.outcome, strict=True), tested.p_adjusted, strict=True)
    )


def _read_p(text: str) -> float:
    return 0.0005 if text == "<0.001" else float(text)


COMMANDS: list[Callable[..., Verdicts]] = [
    *(_of_json, _of_csv, _of_full, _of_page, _of_claims, _of_api)
]


@pytest.mark.slow
def test_every_command_has_the_same_adjusted_p(store):
    expected = _of_json()
    assert set(expected) == {(arm, outcome) for arm in ARMS for outcome in OUTCOMES}
    for command in COMMANDS:
        # Texts have three decimals, the page five digits.
        assert command() == pytest.approx(expected, abs=0.0005), command.__name__


def test_the_adjusted_p_does_not_depend_on_the_columns_shown(store):
    expected = _of_json()
    several = "collapse/acr@first100,pass@1,pass@8[above=guess],optim/change_norm@end"
    for columns in (several, "collapse/acr", "pass@1", "entropy/right,pass@8[level=0]", "pass@*"):
        shown = ("--columns", columns)
        assert _of_json(*shown) == expected
    for command in (_of_csv, _of_page):
        assert command("--columns", several) == pytest.approx(expected, abs=0.0005), (
            command.__name__
        )


def test_a_star_is_a_p_of_at_most_a_twentieth(store):
    """The short report marks what the long one calls significant, and nothing else."""
    lines = _command("report", "demo").splitlines()
    starred = set()
    for arm in ARMS:
        [line] = [line for line in lines if line.startswith(f"{arm} ") and "against" not in line]
        # The name, n, then the outcomes.
        starred |= {
            (arm, name)
            for name, cell in zip(OUTCOMES, line.split()[2:5], strict=True)
            if cell.endswith("*")
        }
    expected = _of_json()
    assert starred == {pair for pair, p in expected.items() if p <= 0.05}
    assert 0 < len(starred) < len(expected)
    found = " ".join(line for line in lines if "against grpo: " in line)
    assert found.count("[") == len(starred)


def test_a_row_of_equal_numbers_is_named_once(store, lab, constant):
    """As `avspo` where no group collapses; a difference without spread is no equality."""
    for seed, own in enumerate([(40, 2), (44, 3), (35, 2)]):
        points = constant(collapse__acr=0.4 + seed / 50, optim__change_norm=2.0 + own[1] / 50)
        settings = {"points": points, "task": TASK, "base_solved": (30, 2)}
        lab.run("avspo", seed, solved=own, **settings)
        lab.run("rloo", seed, solved=(own[0] + 4, own[1]), **settings)
    lines = [line for line in _command("report", "demo").splitlines() if "numbers" in line]
    assert lines == ["avspo has the numbers of grpo, seed by seed."]
