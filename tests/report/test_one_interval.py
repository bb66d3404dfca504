"""Two arms of a sweep have one interval, whatever rows, command and format show it."""

from __future__ import annotations

import csv
import io
import json
import re
from pathlib import Path

import pytest
import yaml
from typer.testing import CliRunner

import advsweep
from advsweep.cli.app import app
from advsweep.statistics import Comparison, compare_arms

OUTCOME = "reward/mean@end"
VALUES = {
    "grpo": [0.47, 0.63, 0.43, 0.57],
    "psr": [0.55, 0.63, 0.47, 0.63],
    "fade": [0.54, 0.63, 0.41, 0.53],
    "opo": [0.48, 0.59, 0.35, 0.54],
    "rloo": [0.53, 0.63, 0.4, 0.56],
}
"""By estimator and seed. By their own spread alone grpo and psr do not differ significantly."""

ENDS = ("difference", "difference_low", "difference_high")

SELECTIONS = [
    ["demo"],
    ["demo", "--where", "estimator=grpo,psr"],
    ["demo", "--where", "estimator=grpo,psr,opo"],
    ["demo", "--where", "estimator=grpo,psr", "--rows", "estimator"],
    ["demo", "--where", "estimator=grpo,psr", "--rows", "estimator,group_size"],
    ["demo", "--columns", f"{OUTCOME},entropy/token@end"],
    ["--where", "estimator=grpo,psr", "--where", "sweep=demo"],
    ["--where", "sweep=demo"],
    [],
]
"""Arguments of `report` that show both arms."""


@pytest.fixture
def expected(lab, constant) -> Comparison:
    """Fill a store: the sweep, one of another design, and one of an arm of its own."""
    for place, (name, values) in enumerate(VALUES.items()):
        for seed, value in enumerate(values):
            points = constant(reward__mean=value, entropy__token=1 - value)
            # Arms of one design may differ in anything but the task and the model.
            age = max(place - 1, 0)
            own = {"group_size": 4 + age, "backend": {"name": "tiny", "stale_steps": age}}
            lab.run(name, seed, points=points, solved=None, **own)
    for name in ("grpo", "psr", "fade"):
        for seed in range(4):
            points = constant(reward__mean=seed * len(name) % 3)
            lab.run(name, seed, points=points, solved=None, sweep="wide", model__width=64)
    # Of the same design, but of a sweep that has not the two arms.
    for seed in range(4):
        points = constant(reward__mean=seed / 3)
        lab.run("late", seed, points=points, solved=None, sweep="later", group_size=4)
    arms = {name: dict(enumerate(values)) for name, values in VALUES.items()}
    found = compare_arms(arms, "psr", "grpo")
    assert (found.pooled, found.df, found.n) == (True, 12, 4)
    return found


def _command(*arguments: str) -> str:
    result = CliRunner().invoke(app, [*arguments, "--store", "advsweep.db"])
    assert result.exit_code in (0, 1), result.output
    return result.output


def _ends(expected: Comparison) -> list[float]:
    return pytest.approx([expected.difference, expected.low, expected.high])


@pytest.mark.parametrize("selection", SELECTIONS, ids=" ".join)
def test_every_selection_of_rows_has_the_interval(expected, selection):
    options = ["--baseline", "grpo", "--format", "json"]
    document = json.loads(_command("report", *selection, *options))
    groups = [row["group"] for row in document["rows"]]
    [found] = [
        d
        for d in document["differences"]
        if d["metric"] == OUTCOME
        and groups[d["row"]]["estimator"] == "psr"
        and groups[d["row"]].get("group_size", 4) == 4
    ]
    assert [found[key] for key in ENDS] == _ends(expected)
    assert (found["df"], found["p"]) == (12, pytest.approx(expected.p_value))


@pytest.mark.parametrize("selection", SELECTIONS[:6], ids=" ".join)
def test_every_format_and_command_has_the_interval(expected, selection):
    options = [*selection, "--baseline", "grpo"]
    [line] = [
        row
        for row in csv.DictReader(io.StringIO(_command("report", *options, "--format", "csv")))
        if row["estimator"] == "psr"
    ]
    names = [f"{OUTCOME}_difference{end}" for end in ("", "_low", "_high")]
    assert [float(line[name]) for name in names] == _ends(expected)

    written = f"{expected.difference:+.3f} [{expected.low:+.3f}, {expected.high:+.3f}]"
    short = f"[{expected.low:+.3f}, {expected.high:+.3f}]"
    assert short in _command("report", *options)
    assert short in _command("report", *options, "--full")
    assert short in _command("report", *options, "--format", "markdown")

    page = _command("report", *options, "--format", "html")
    assert written in page or short in page
    data = re.search(r'<script type="application/json" id="data">(.*?)</script>', page, re.S)[1]
    [drawn] = [
        own
        for column in json.loads(data)["differences"]
        if column["primary"]
        for own in column["lines"]
        if own["label"].startswith("psr")
    ]
    ends = [expected.difference, expected.low, expected.high]
    assert [drawn["mean"], drawn["low"], drawn["high"]] == pytest.approx(ends, rel=1e-3)

    asserted = f"{OUTCOME}[psr] > {OUTCOME}[grpo]"
    sentence = _command("report", *options, "--assert", asserted)
    assert (
        f"= {expected.difference:+.4f}, 95 % interval [{expected.low:+.4f}, {expected.high:+.4f}]"
    ) in sentence
    turned = _command("report", *options, "--assert", f"{OUTCOME}[grpo] < {OUTCOME}[psr]")
    assert f"[{-expected.high:+.4f}, {-expected.low:+.4f}]" in turned


@pytest.mark.parametrize(
    "where", ["", "estimator=grpo,psr", "estimator=grpo,psr,opo", "seed<9 estimator!=rloo"]
)
def test_claims_and_python_have_the_interval(expected, where):
    pair = {"of": "psr", "than": "grpo"}
    claims = [
        {"id": "higher", "metric": OUTCOME, "direction": "higher", **pair},
        {"id": "within", "metric": OUTCOME, "direction": "within", "margin": 0.5, **pair},
        {"id": "stated", "statement": f"{OUTCOME}[psr] > {OUTCOME}[grpo]"},
    ]
    common = {"sweep": "demo", "says": "so", **({"where": where} if where else {})}
    listed = [{**common, **claim} for claim in claims]
    Path("list.yaml").write_text(yaml.safe_dump({"claims": listed}))
    for found in json.loads(_command("claims", "list.yaml", "--format", "json"))["claims"]:
        assert [found[key] for key in ("difference", "low", "high")] == _ends(expected), found

    table = advsweep.report("advsweep.db", sweep="demo", where=where or ())
    frame = table.differences()
    [line] = frame[(frame.estimator == "psr") & (frame.outcome == OUTCOME)].to_dict("records")
    assert [line[key] for key in ENDS] == _ends(expected)

    options = ["--where", where] if where else []
    drawn = _command(
        *("plot", "demo", "--figure", "forest", "--baseline", "grpo", "--format", "csv"),
        *("-o", "forest.svg", *options),
    )
    heading = next(line for line in drawn.splitlines() if line.startswith("outcome,"))
    records = csv.DictReader(io.StringIO(drawn[drawn.index(heading) :]))
    [line] = [record for record in records if record["row"] == "psr"]
    assert [float(line[key]) for key in ("difference", "low", "high")] == _ends(expected)


def test_whichever_arm_is_the_baseline_the_interval_is_the_same(expected):
    for where in ("estimator=grpo,psr", "estimator=grpo,psr,fade"):
        report = advsweep.report("advsweep.db", sweep="demo", where=where, baseline="psr").report
        [turned] = [
            d.comparison
            for d in report.differences
            if d.is_primary and report.rows[d.row].group["estimator"] == "grpo"
        ]
        assert [-turned.difference, -turned.high, -turned.low] == _ends(expected)


def test_seeds_that_are_left_out_lend_nothing(expected):
    report = advsweep.report("advsweep.db", sweep="demo", where="seed<3 estimator=grpo,psr").report
    [found] = [d.comparison for d in report.differences if d.column.name == OUTCOME]
    arms = {name: dict(enumerate(values[:3])) for name, values in VALUES.items()}
    own = compare_arms(arms, "psr", "grpo")
    assert (found.low, found.high, found.df) == pytest.approx((own.low, own.high, own.df))


def test_two_arms_without_a_common_sweep_have_the_spread_of_the_store(expected, lab, constant):
    for seed, value in enumerate([0.51, 0.66, 0.43, 0.59]):
        points = constant(reward__mean=value)
        lab.run("apart", seed, points=points, solved=None, sweep="apart", group_size=4)
    report = advsweep.report("advsweep.db", where="estimator=apart,grpo group_size=4").report
    [found] = [d.comparison for d in report.differences if d.column.name == OUTCOME]
    arms = {name: dict(enumerate(values)) for name, values in VALUES.items()}
    arms["apart"] = dict(enumerate([0.51, 0.66, 0.43, 0.59]))
    own = compare_arms(arms, "grpo", "apart")
    assert found.df == own.df == 15
    # The first row is the baseline.
    ends = sorted([abs(own.low), abs(own.high)])
    assert sorted([abs(found.low), abs(found.high)]) == pytest.approx(ends)
