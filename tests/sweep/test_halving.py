"""Tuning by halving: which runs it trains, what it chooses, and what it costs."""

from __future__ import annotations

import zlib

import pytest

from advsweep.cli.runs import print_tuning
from advsweep.config.space import Rung, Tune
from advsweep.errors import ConfigError
from advsweep.failures import Failure
from advsweep.store import Owner, Status, open_store
from advsweep.store.tuning_records import ValueState
from advsweep.sweep.events import SweepResult
from advsweep.sweep.scheduler.execute import execute
from advsweep.sweep.strategies import plan_sweep
from advsweep.sweep.tuning import execute_tuning, plan_tuning
from advsweep.sweep.worker.environment import new_run
from tests.sweep.test_tuning import BANDIT, SWEEP, StoppedError, sweep_writer

VALUES = [1, 2, 4, 8, 16]
TUNE = {"values": VALUES, "seeds": 4, "extend": 0, "halving": True}


@pytest.fixture
def write(tmp_path):
    return sweep_writer(tmp_path, BANDIT, {**SWEEP, "controls": None, "tune": TUNE})


def planned(path):
    tuning = plan_tuning([path])
    assert tuning is not None
    return tuning


class Results:
    """Stands for the training: it stores the results that a test says, as the scheduler would.

    Attributes:
        stages: of each stage the values and the number of seeds of each arm.
        trained: the number of runs that were not there before.
    """

    def __init__(self, store, score, failing=(), dies_after=None):
        self.store = store
        self.score = score
        self.failing = failing
        self.dies_after = dies_after
        self.stages = []
        self.trained = 0

    def __call__(self, plan):
        trials = {}
        for planned_run in plan.runs:
            run = planned_run.run
            key = (run.estimator.name, run.optimizer.lr)
            trials[key] = trials.get(key, 0) + 1
            self.train(planned_run, plan.name)
        self.stages.append(trials)
        ids = [run.id for run in self.store.runs.select(sweep=plan.name)]
        return SweepResult(run_ids=ids, done=0, skipped=0, failed={}, unfinished=0, stopped=False)

    def train(self, planned_run, sweep):
        run = planned_run.run
        self.store.sweeps.add(sweep, {})
        [run_id] = self.store.runs.add([new_run(run, planned_run.config)], sweep)
        [record] = self.store.runs.select(ids=[run_id])
        if record.status is not Status.PENDING:
            return
        if self.trained == self.dies_after:
            raise StoppedError
        assert self.store.leases.claim(run_id, Owner.current())
        rate = run.optimizer.lr
        if (run.estimator.name, rate) in self.failing:
            self.store.leases.finish(run_id, Status.FAILED, failure=Failure.ERROR)
        else:
            value = self.score(run.estimator.name, rate, run.seed)
            self.store.metrics.record(run_id, [("pass@1", run.steps, value)], step=run.steps)
            self.store.leases.finish(run_id, Status.DONE)
        self.trained += 1


def peak_at(best):
    """Scores that fall with the distance of a value from an arm's best, and differ by seed."""

    def score(estimator, rate, seed):
        return 0.5 - 0.05 * abs(VALUES.index(rate) - VALUES.index(best[estimator])) + seed % 3 / 10

    return score


def states(arm):
    return {each.value: (each.state, each.seeds, len(each.scores)) for each in arm.grid}


DONE, DROPPED = ValueState.DONE, ValueState.DROPPED


def test_the_worse_half_is_dropped_and_the_others_get_more_seeds(write, store, capsys):
    results = Results(store, peak_at({"grpo": 4, "rloo": 8}))
    record, _ = execute_tuning(planned(write()), store, results)
    first, second, third = results.stages
    assert first == {(name, value): 1 for name in ("grpo", "rloo") for value in VALUES}
    # Of equals, here 2 and 8 beside 4, the smaller one is the better.
    assert second == {
        **{("grpo", value): 2 for value in (2, 4, 8)},
        **{("rloo", value): 2 for value in (4, 8, 16)},
    }
    assert third == {
        **{("grpo", value): 4 for value in (2, 4)},
        **{("rloo", value): 4 for value in (4, 8)},
    }
    grpo, rloo = record.arms
    assert (grpo.chosen, rloo.chosen) == (4, 8)
    assert states(grpo) == {
        1: (DROPPED, 1, 1),
        2: (DONE, 4, 4),
        4: (DONE, 4, 4),
        8: (DROPPED, 2, 2),
        16: (DROPPED, 1, 1),
    }
    assert record.title == (
        "optimizer.lr tuned for each arm by pass@1 on seeds 1000, 1001, 1002, 1003 (fair-tuning), "
        "by halving with 24 of the 40 runs of the grid"
    )
    assert results.trained == 24
    assert store.sweeps.tuning("fair") == record
    # The table of `status` says on how few seeds a value was dropped.
    print_tuning(record)
    [line] = [line for line in capsys.readouterr().out.splitlines() if line.startswith("grpo")]
    assert line.split() == [
        *("grpo", "0.500", "(n=1)", "0.550", "0.600", "0.600", "(n=2)", "0.500", "(n=1)"),
        "4",
    ]


@pytest.mark.slow
def test_a_dropped_value_is_not_chosen_whatever_its_first_seed_says(write, store):
    """The mean of one lucky seed is above that of four, and is compared with nothing any more."""

    def score(estimator, rate, seed):
        if seed == 1000:
            return {1: 0.91, 2: 0.92, 4: 0.93, 8: 0.94, 16: 0.95}[rate]
        return {4: 0.1, 8: 0.2, 16: 0.3}[rate]

    record, _ = execute_tuning(planned(write()), store, Results(store, score))
    for arm in record.arms:
        assert arm.chosen == 16
        best = next(each for each in arm.grid if each.value == 16)
        assert best.score < min(e.score for e in arm.grid if e.state is DROPPED)


def test_a_value_that_fails_is_among_the_worse_half_and_the_arm_goes_on(write, store):
    failing = {("grpo", value) for value in (4, 8, 16)} | {("rloo", value) for value in VALUES}
    results = Results(store, peak_at({"grpo": 4, "rloo": 4}), failing)
    record, _ = execute_tuning(planned(write()), store, results)
    grpo, rloo = record.arms
    # What failed is on no later rung; both of the others get all seeds.
    assert {value: each[0] for value, each in states(grpo).items()} == {
        1: DONE,
        2: DONE,
        **dict.fromkeys((4, 8, 16), ValueState.FAILED),
    }
    assert (grpo.chosen, rloo.chosen) == (2, None)
    tries = [{name for name, _ in stage} for stage in results.stages]
    assert tries == [{"grpo", "rloo"}, {"grpo"}, {"grpo"}]
    assert record.is_complete


@pytest.mark.slow
def test_a_grid_grows_beyond_its_edge_by_values_with_all_seeds(write, store):
    tuning = planned(write(tune={**TUNE, "extend": 2}))

    def score(estimator, rate, seed):
        return rate / 100 if estimator == "grpo" else 1 / rate

    results = Results(store, score)
    record, _ = execute_tuning(tuning, store, results)
    grpo, rloo = record.arms
    assert (grpo.chosen, rloo.chosen) == (64, 0.25)
    assert states(grpo)[32] == states(grpo)[64] == (DONE, 4, 4)
    assert results.trained == tuning.first_runs + tuning.extra_runs == 24 + 16
    assert "(edge)" in grpo.choice


@pytest.mark.slow
@pytest.mark.parametrize("dies_after", [3, 10, 17])
def test_a_tuning_that_was_killed_comes_to_the_same_with_the_same_runs(
    write, store, tmp_path, dies_after
):
    """Killed within each rung and between them."""

    def score(estimator, rate, seed):
        return zlib.crc32(f"{estimator} {rate} {seed}".encode()) % 97 / 97

    with pytest.raises(StoppedError):
        execute_tuning(planned(write()), store, Results(store, score, dies_after=dies_after))
    rest = Results(store, score)
    record, _ = execute_tuning(planned(write()), store, rest)
    with open_store(str(tmp_path / "whole.db")) as other:
        whole = Results(other, score)
        assert execute_tuning(planned(write()), other, whole)[0] == record
    assert rest.trained + dies_after == whole.trained == 24


@pytest.mark.slow
def test_a_killed_sweep_that_trains_comes_to_the_same_end(write, store, tmp_path):
    path = write(tune={**TUNE, "values": [2, 4, 8], "seeds": 2})

    def dying(plan):
        stages.append(plan.name)
        if len(stages) == 2:
            raise StoppedError
        return execute(plan, store, 1)

    stages: list[str] = []
    with pytest.raises(StoppedError):
        execute_tuning(planned(path), store, dying)
    record, _ = execute_tuning(planned(path), store, lambda plan: execute(plan, store, 1))
    with open_store(str(tmp_path / "whole.db")) as other:
        whole, _ = execute_tuning(planned(path), other, lambda plan: execute(plan, other, 1))
    assert record == whole
    assert len(store.runs.select(sweep="fair-tuning")) == 2 * 5
    test = planned(path).plan_test(record)
    assert {p.run.optimizer.lr for p in test.runs} == {arm.chosen for arm in record.arms}
    # The comparison has the same seeds for every arm, whatever halving trained before.
    seeds = {(p.run.estimator.name, p.run.seed) for p in test.runs}
    assert seeds == {(name, seed) for name in ("grpo", "rloo") for seed in (0, 1)}


@pytest.mark.slow
def test_a_dry_run_says_what_it_costs_at_most_and_what_it_saves(write, store):
    sweep = plan_sweep([write(tune={**TUNE, "extend": 1})])
    before = sweep.preview(None)
    assert before.texts == [
        "sweep fair: at most 24 tuning runs in place of 40 (2 arms x 5 values of optimizer.lr x 1 "
        "seed, the better 3 x 2 seeds, the better 2 x 4 seeds), and at most 8 more where the best "
        "value is at an edge; then 4 test runs"
    ]
    counts = {key: before.counts[key] for key in before.counts if key != "tune"}
    assert counts == {"tuning_runs": 24, "most_tuning_runs": 32, "test_runs": 4}
    # Only the first rung is known.
    assert len(before.stage.plan.runs) == 10
    results = Results(store, peak_at({"grpo": 4, "rloo": 8}))
    texts: list[str] = []
    stopped = iter([False, True])

    def train(stage):
        texts.append(stage.text)
        result = results(stage.plan)
        return SweepResult(**{**vars(result), "stopped": next(stopped)})

    sweep.execute(store, train, lambda text: None)
    assert texts == [
        "values of optimizer.lr: 1, 2, 4, 8, 16, with 1 seed",
        "values of optimizer.lr: 2, 4, 8, 16, with 2 seeds",
    ]
    after = sweep.preview(store)
    assert {run.seed for run in (p.run for p in after.stage.plan.runs)} == {1000, 1001, 1002, 1003}
    assert after.tuning is not None
    assert "by halving" in after.tuning.title
    assert not after.tuning.is_complete


@pytest.mark.parametrize(
    ("values", "seeds", "rungs", "runs"),
    [
        (5, 8, [(5, 2), (3, 4), (2, 8)], 24),
        (5, 4, [(5, 1), (3, 2), (2, 4)], 12),
        (5, 3, [(5, 1), (3, 2), (2, 3)], 10),
        (5, 2, [(5, 1), (3, 2)], 8),
        (3, 2, [(3, 1), (2, 2)], 5),
        (4, 8, [(4, 4), (2, 8)], 24),
        (9, 8, [(9, 1), (5, 2), (3, 4), (2, 8)], 28),
    ],
)
def test_the_rungs_have_about_half_the_values_and_twice_the_seeds(values, seeds, rungs, runs):
    tune = Tune(values=tuple(range(1, values + 1)), seeds=seeds, halving=True)
    assert tune.rungs == [Rung(values=v, seeds=s) for v, s in rungs]
    assert tune.runs == runs
    whole = Tune(values=tuple(range(1, values + 1)), seeds=seeds)
    assert whole.rungs == [Rung(values=values, seeds=seeds)]
    assert whole.runs == values * seeds


@pytest.mark.slow
def test_the_lowest_are_kept_of_a_metric_that_should_be_low(write, store):
    results = Results(store, lambda estimator, rate, seed: rate)
    record, _ = execute_tuning(planned(write(tune={**TUNE, "lower": True})), store, results)
    assert [arm.chosen for arm in record.arms] == [1, 1]


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"values": [1, 2]}, "three or more values and two or more seeds, got 2 and 4"),
        ({"seeds": 1}, "three or more values and two or more seeds, got 5 and 1"),
        ({"halving": 3}, "sweep.tune.halving"),
    ],
)
def test_what_cannot_be_halved_is_refused(write, changes, message):
    with pytest.raises(ConfigError) as refused:
        plan_tuning([write(tune={**TUNE, **changes})])
    assert message in str(refused.value)
    assert "\n" not in str(refused.value)
