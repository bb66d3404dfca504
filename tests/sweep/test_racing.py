"""Raced sweeps: what they train, interrupted or not, and what they refuse."""

from __future__ import annotations

import json

import pytest

from advsweep.cli.plans import plan_sweep
from advsweep.errors import ConfigError
from advsweep.report.html import render_page
from advsweep.report.tables.build import build_report
from advsweep.report.tables.request import ReportRequest
from advsweep.store import open_store
from advsweep.store.races import RACE_KEY, read_race
from advsweep.sweep.events import EventKind, RunEvent
from advsweep.sweep.planning.plan import make_plan
from advsweep.sweep.racing import execute_race, plan_race
from advsweep.sweep.scheduler.execute import execute
from advsweep.sweep.status import read_status
from advsweep.sweep.strategies import train_sweep
from tests.sweep.test_tuning import BANDIT, StoppedError, sweep_writer

SWEEP = {
    "name": "raced",
    "race": {"margin": 0.05, "most": 8},
    "controls": ["placebo"],
    "common": {"optimizer.lr": 40, "task.seed": "seed"},
    "blocks": [{"estimator": ["grpo", "rloo"]}],
}


@pytest.fixture
def write(tmp_path):
    return sweep_writer(tmp_path, {**BANDIT, "steps": 40}, SWEEP)


def raced(plan, store, on_event=lambda event: None, rounds=None):
    """Trains all of a race; counts the runs of each round."""

    def run(stage, record):
        assert record == read_race(store, plan.name)
        (rounds if rounds is not None else []).append(len(stage.runs))
        return execute(stage, store, 2, on_event)

    return execute_race(plan_race(plan), store, run)


def test_a_race_ends_by_itself_with_fewer_runs_than_all_seeds(write, store):
    plan = make_plan([write()])
    assert len(plan.runs) == 3 * 8
    rounds = []
    result = raced(plan, store, rounds=rounds)
    record = read_race(store, "raced")
    assert record.names == ["grpo", "rloo", "grpo (placebo)"]
    placebo = record.standings[2]
    assert (placebo.to_baseline.verdict, placebo.place) == ("below", "worse")
    assert not any(own.is_racing for own in record.standings)
    # 5 seeds settle nothing sooner; the placebo is given no more than it takes.
    assert rounds[0] == 3 * 5
    assert placebo.seeds < 8
    trained = store.runs.select(sweep="raced")
    assert len(trained) == sum(own.seeds for own in record.standings) == sum(rounds) < 24
    assert (result.done, result.exit_code) == (len(trained), 0)
    # What others show of it.
    assert read_status(store, "raced", failures=1).race == record
    (first, *_, placebo_row) = record.rows()
    assert (first["arm"], first["to grpo"], first["after 5 seeds"]) == ("grpo", "baseline", "")
    assert (placebo_row["to grpo"], placebo_row["to the best"]) == ("below", "worse")
    low, high = map(float, placebo_row["after 5 seeds"].split(" to "))
    assert low < high < 0
    json.dumps(record.plain(), allow_nan=True)
    report = build_report(store, ReportRequest("raced"))
    assert any(record.text in remark for remark in report.remarks)
    page = render_page(report, store)
    assert record.title in page
    assert placebo_row["after 5 seeds"] in page


def test_equal_arms_are_told_with_what_their_seeds_leave_open(write, store):
    """With no failure among 5 seeds the bound is 1 - .05^(1/5) = 45 %."""
    plan = make_plan([write(race={"margin": 10, "most": 8}, controls=["aa"])])
    raced(plan, store)
    record = read_race(store, "raced")
    words = "equal: 0 of 5 seeds failed; failures of up to 45 % of runs are not excluded"
    assert f"grpo (A/A), {words}" in record.limits
    assert record.plain()["limits"] == record.limits
    report = build_report(store, ReportRequest("raced"))
    assert any(words in remark for remark in report.remarks)
    assert words in render_page(report, store)


@pytest.mark.slow
@pytest.mark.parametrize("after", [5, 13])
def test_an_interrupted_race_comes_to_the_same_end(write, store, tmp_path, after):
    """Killed among the first seeds, and in a later round."""
    # Eight runs settle nothing here; three more rounds do.
    path = write(
        {"steps": 20},
        race={"margin": 0.001, "most": 16},
        controls=None,
        common={"optimizer.lr": 10, "task.seed": "seed"},
        blocks=[{"estimator": ["grpo", "psr"]}],
    )
    starts = 0

    def dying(event):
        nonlocal starts
        if isinstance(event, RunEvent) and event.kind is EventKind.STARTED:
            starts += 1
            if starts == after:
                raise StoppedError

    with pytest.raises(StoppedError):
        raced(make_plan([path]), store, dying)
    raced(make_plan([path]), store)
    with open_store(str(tmp_path / "whole.db")) as other:
        raced(make_plan([path]), other)
        assert read_race(store, "raced") == read_race(other, "raced")
        runs = [{run.identity for run in each.runs.select()} for each in (store, other)]
    assert runs[0] == runs[1]
    # Nothing is left to do.
    again = raced(make_plan([path]), store)
    assert (again.done, again.skipped) == (0, len(runs[0]))


def test_an_arm_whose_runs_fail_is_given_no_more_seeds(write, store):
    fake = {"defaults": [{"override /executor": "debug"}, {"override /backend": "fake"}]}
    small = {**fake, "task": {"held_out_per_level": 2}, "prompts_per_step": 8, "steps": 2}
    blocks = [{"estimator": "grpo"}, {"estimator": "rloo", "backend.nan_at": 2}]
    plan = make_plan([write(small, controls=None, common=None, blocks=blocks)])
    result = raced(plan, store)
    assert len(result.failed) == 4
    record = read_race(store, "raced")
    assert [own.seeds for own in record.standings] == [4, 4]
    assert record.standings[1].to_baseline.verdict == "open"


def test_what_the_store_says_of_a_race_is_checked(write, store):
    node = plan_race(make_plan([write()])).spec[RACE_KEY]
    for broken in (
        [],
        {"settings": {}},
        {**node, "settings": {"margin": -1}},
        {**node, "arms": node["arms"][:1]},
        {**node, "arms": [*node["arms"], {"name": "more", "runs": []}]},
        {**node, "arms": [None]},
    ):
        store.sweeps.add("raced", {RACE_KEY: broken})
        assert read_race(store, "raced") is None
    store.sweeps.add("raced", {RACE_KEY: json.loads(json.dumps(node))})
    assert [own.seeds for own in read_race(store, "raced").standings] == [0, 0, 0]


@pytest.mark.slow
def test_the_arms_of_a_tuned_sweep_race_at_their_choices(write, store):
    tune = {"values": [20, 40], "extend": 0, "seeds": 2}
    planned = plan_sweep(
        [write(tune=tune, controls=None, common={"task.seed": "seed"})], (), None, fetch=False
    )
    outcome = train_sweep(planned, store)
    assert outcome.exit_code == 0
    assert outcome.race == read_race(store, "raced")
    chosen = {arm.name: arm.chosen for arm in store.sweeps.tuning("raced").arms}
    runs = store.runs.select(sweep="raced")
    assert {(r.estimator, r.config["optimizer"]["lr"]) for r in runs} == set(chosen.items())
    assert len(runs) == sum(own.seeds for own in read_race(store, "raced").standings)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"race": {"margin": 0}}, r"sweep.race.margin: expected .*> 0.*, got 0"),
        ({"race": {"most": 4}}, r"sweep.race.most: expected at least 5 seeds, .*, got 4"),
        ({"race": {"margn": 1}}, r"sweep.race.margn: .*margin"),
        ({"race": 3}, r"sweep.race: expected true, or a mapping .*, got 3"),
        (
            {"race": {"metric": "pass@8"}},
            r"sweep.race.metric: expected one of pass@1, which evaluation.k makes, got 'pass@8'",
        ),
        ({"race": {"metric": "rewad/mean"}}, r"sweep.race.metric: .*'rewad/mean'.*reward/mean"),
        ({"baseline": "fade"}, r"sweep.baseline: expected an estimator .*, got 'fade'"),
        (
            {"blocks": [{"estimator": "grpo", "seed": [0, 1]}, {"estimator": "rloo", "seed": 5}]},
            r"sweep.race: expected the same seeds for every arm, .*got 0, 1 for .*grpo.* and 5 for",
        ),
        (
            {"blocks": [{"estimator": "grpo"}], "controls": None},
            r"sweep.race: expected two arms or more to compare, got one",
        ),
    ],
)
def test_what_cannot_be_raced_is_refused_in_a_line(write, changes, message):
    with pytest.raises(ConfigError, match=message) as refused:
        plan_sweep([write(**changes)], (), None, fetch=False)
    assert "\n" not in str(refused.value)


def test_the_command_line_turns_on_what_the_file_has(write):
    own, defaults = (
        make_plan([write(race=race), "sweep.race=true"]).race for race in ({"most": 9}, None)
    )
    assert (own.most, defaults.most) == (9, 12)
    assert make_plan([write(), "sweep.race=null"]).race is None
    plan = make_plan([write(seeds=[3, 7], baseline="rloo", controls=None), "sweep.race=true"])
    assert [(p.run.estimator.name, p.run.seed) for p in plan.runs][:4] == [
        ("rloo", seed) for seed in (3, 7, 8, 9)
    ]
