"""Two arms of a sweep have one interval, whatever rows, command and format show it."""

from __future__ import annotations

import csv
import io
import json
import re
from pathlib import Path

import pytest
import yaml
from scipy import stats
from typer.testing import CliRunner

import advsweep
from advsweep.cli.app import app
from advsweep.statistics import Comparison, compare_arms
from advsweep.store import Status

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


@pytest.mark.parametrize("order", ["estimator", OUTCOME, "total/steps", f"rank:{OUTCOME}"])
def test_no_order_of_the_rows_changes_the_baseline(expected, order):
    """The first arm of the sweep is the baseline, which no order puts first: it is the lowest."""
    document = json.loads(
        _command("report", "demo", "--where", "estimator=grpo,psr", "--sort", order, *_JSON)
    )
    groups = [row["group"]["estimator"] for row in document["rows"]]
    [found] = [d for d in document["differences"] if d["metric"] == OUTCOME]
    assert (groups[found["row"]], groups[found["baseline"]]) == ("psr", "grpo")
    assert [found[key] for key in ENDS] == _ends(expected)


_JSON = ("--columns", f"{OUTCOME},total/steps", "--format", "json")

COSTS = {"grpo": 1.0, "psr": 1.5, "fade": 0.5}
"""Rollouts of each step, of 32 without resampling: in 20 steps 640, 960 and 320."""


@pytest.fixture
def resampled(lab):
    """Fill a sweep of arms of several costs, with a cheaper run elsewhere and one that failed."""
    for name, cost in COSTS.items():
        for seed in range(3):
            points = [("cost/rollouts", step, cost) for step in range(1, 21)]
            points += [
                ("reward/mean", step, step * (0.01 + 0.001 * seed) + (name == "psr") * seed**2)
                for step in range(1, 21)
            ]
            lab.run(name, seed, points=points, solved=None)
    few = [(name, 1, 0.1) for name in ("cost/rollouts", "reward/mean")]
    lab.run("other", 0, points=few, solved=None, sweep="elsewhere")
    lab.run("short", 0, points=few, solved=None, status=Status.FAILED)
    return lab


@pytest.mark.parametrize(
    "selection",
    [
        ["demo"],
        ["demo", "--where", "estimator=grpo,psr"],
        ["--where", "sweep=demo estimator!=fade"],
    ],
    ids=" ".join,
)
@pytest.mark.parametrize("cost", ["rollouts", "steps"])
def test_a_filter_does_not_move_where_costs_are_equal(resampled, selection, cost):
    """The cheapest arm of the sweep has 320 rollouts: after 10 steps of grpo, and 6.7 of psr."""
    document = json.loads(_command("report", *selection, "--at", cost, *_JSON))
    steps = {row["group"]["estimator"]: row["metrics"]["total/steps"] for row in document["rows"]}
    ends = {"rollouts": (10, 320 / 48), "steps": (20, 20)}[cost]
    assert (steps["grpo"]["mean"], steps["psr"]["mean"]) == pytest.approx(ends)
    [found] = [
        d
        for d in document["differences"]
        if d["metric"] == OUTCOME and document["rows"][d["row"]]["group"]["estimator"] == "psr"
    ]
    whole = advsweep.report("advsweep.db", sweep="demo", at=cost).report
    [other] = [
        d.comparison
        for d in whole.differences
        if d.column.name == OUTCOME and whole.rows[d.row].group["estimator"] == "psr"
    ]
    assert [found[key] for key in ENDS] == pytest.approx([other.difference, other.low, other.high])


def test_the_report_says_which_run_is_the_cheapest(resampled):
    shown = ("--where", "estimator=grpo,psr", "--at", "rollouts", "--columns", "total/steps")
    remark = (
        "had spent 320 rollouts, the least of all of the sweep's finished runs (run 7 of fade, "
        "which is not shown; those shown have all spent 640: --at rollouts=640)"
    )
    assert remark in " ".join(_command("report", "demo", *shown, "--format", "markdown").split())
    whole = _command("report", "demo", "--at", "rollouts", "--columns", "total/steps")
    assert "not shown" not in whole


REPEAT = "grpo (A/A)"
REPEATED = [0.51, 0.6, 0.45, 0.6]


@pytest.fixture
def repeated(expected, lab, constant) -> dict[str, Comparison]:
    """Add an A/A arm of grpo; return its comparison with grpo, and that of psr with it."""
    for seed, value in enumerate(REPEATED):
        points = constant(reward__mean=value, entropy__token=1 - value)
        control = {"control__name": "aa", "control__copy": 1}
        own = {"group_size": 4, "backend": {"name": "tiny", "stale_steps": 0}}
        lab.run("grpo", seed, points=points, solved=None, **own, **control)
    arms = {name: dict(enumerate(values)) for name, values in VALUES.items()}
    arms[REPEAT] = dict(enumerate(REPEATED))
    return {
        "grpo": compare_arms(arms, REPEAT, "grpo"),
        "psr": compare_arms(arms, "psr", REPEAT),
        "plain": compare_arms(arms, "psr", "grpo"),
    }


def test_an_aa_arm_goes_through_every_test_of_its_table(repeated):
    assert repeated["grpo"].df == repeated["plain"].df == 15
    options = ("--rows", "estimator", "--baseline", "grpo", "--format", "json")
    document = json.loads(_command("report", "demo", *options))
    names = [row["group"]["estimator"] for row in document["rows"]]
    tested = {names[d["row"]]: d for d in document["differences"] if d["metric"] == OUTCOME}
    assert tested.keys() == {*VALUES, REPEAT} - {"grpo"}
    assert all(own.keys() == tested[REPEAT].keys() for own in tested.values())
    assert [tested[REPEAT][key] for key in ENDS] == _ends(repeated["grpo"])
    # All five p values are adjusted together, that of the A/A arm with those of the others.
    places = sorted(tested, key=lambda name: tested[name]["p"])
    adjusted = 1.0
    for rank, name in reversed([*enumerate(places, start=1)]):
        adjusted = min(adjusted, tested[name]["p"] * 5 / rank)
        assert tested[name]["p_adjusted"] == pytest.approx(adjusted)
    [ranked] = [
        row["rank"]
        for row in json.loads(
            _command("report", "demo", "--sort", f"rank:{OUTCOME}", "--format", "json")
        )["rows"]
        if row["group"]["estimator"] == REPEAT
    ]
    assert ranked


@pytest.mark.parametrize("where", ["", "estimator!=rloo", "group_size=4"])
def test_claims_about_an_aa_arm_have_its_interval(repeated, where):
    claims = [
        {"id": "repeat", "statement": f"{OUTCOME}[{REPEAT}] > {OUTCOME}[grpo]"},
        {"id": "within", "metric": OUTCOME, "of": REPEAT, "than": "grpo", "direction": "within"},
        {"id": "against", "metric": OUTCOME, "of": "psr", "than": REPEAT, "direction": "higher"},
        {"id": "plain", "statement": f"{OUTCOME}[psr] > {OUTCOME}[grpo]"},
    ]
    claims[1]["margin"] = 0.1
    common = {"sweep": "demo", "says": "so", "rows": "estimator"}
    common |= {"where": where} if where else {}
    Path("list.yaml").write_text(yaml.safe_dump({"claims": [{**common, **c} for c in claims]}))
    found = {
        own["claim"]: [own[key] for key in ("difference", "low", "high")]
        for own in json.loads(_command("claims", "list.yaml", "--format", "json"))["claims"]
    }
    assert found["repeat"] == found["within"] == _ends(repeated["grpo"])
    assert found["against"] == _ends(repeated["psr"])
    assert found["plain"] == _ends(repeated["plain"])


UNKNOWN = {"grpo": [0.2, 0.4, 0.6, 0.8], "rloo": [0.42, 0.52, 0.79, 0.93], "opo": [0.1, 0.3, 0.35]}


@pytest.mark.parametrize("known", [0, 1, 3], ids="{} known seeds".format)
def test_claims_about_unknown_seeds_have_the_interval_of_the_report(tmp_path, monkeypatch, known):
    """With two known seeds or more they are pairs, alone; with fewer all runs are two samples."""
    monkeypatch.chdir(tmp_path)
    Path("logs").mkdir()
    for estimator, values in UNKNOWN.items():
        for place, value in enumerate(values):
            config = {"estimator": estimator} | ({"seed": place} if place < known else {})
            lines = [{"config": config}, *({"step": s, "reward": value} for s in range(1, 13))]
            text = "".join(json.dumps(line) + "\n" for line in lines)
            Path(f"logs/{estimator}_{place}.jsonl").write_text(text)
    _command("import", "jsonl", "logs", "--sweep", "demo")

    pairs = {name: dict(enumerate(values[:known])) for name, values in UNKNOWN.items()}
    own = stats.ttest_ind(UNKNOWN["rloo"], UNKNOWN["grpo"], equal_var=False)
    ends = [0.165, *own.confidence_interval()]
    if known > 1:
        compared = compare_arms(pairs, "rloo", "grpo")
        ends = [compared.difference, compared.low, compared.high]

    claims = [
        {"id": "stated", "statement": f"{OUTCOME}[rloo] > {OUTCOME}[grpo]"},
        {"id": "turned", "statement": f"{OUTCOME}[grpo] < {OUTCOME}[rloo]"},
        {"id": "within", "metric": OUTCOME, "of": "rloo", "than": "grpo", "direction": "within"},
    ]
    claims[2]["margin"] = 1
    for where in ("", "estimator=grpo,rloo"):
        options = ["--where", where] if where else []
        document = json.loads(_command("report", "demo", *options, "--format", "json"))
        names = [row["group"]["estimator"] for row in document["rows"]]
        [shown] = [
            d
            for d in document["differences"]
            if d["metric"] == OUTCOME and names[d["row"]] == "rloo"
        ]
        assert names[shown["baseline"]] == "grpo"
        assert [shown[key] for key in ENDS] == pytest.approx(ends)
        common = {"sweep": "demo", "says": "so"} | ({"where": where} if where else {})
        Path("list.yaml").write_text(yaml.safe_dump({"claims": [{**common, **c} for c in claims]}))
        judged = json.loads(_command("claims", "list.yaml", "--format", "json"))["claims"]
        found = {c["claim"]: [c["difference"], c["low"], c["high"]] for c in judged}
        assert found["stated"] == found["within"] == pytest.approx(ends)
        assert found["turned"] == pytest.approx([-ends[0], -ends[2], -ends[1]])
        asserted = _command("report", "demo", *options, "--assert", claims[0]["statement"])
        assert f"95 % interval [{ends[1]:+.4f}, {ends[2]:+.4f}]" in asserted
