"""The time of the work that is left, with workers side by side."""

from __future__ import annotations

import pytest

from advsweep import names
from advsweep.config.settings import EvaluationSettings
from advsweep.sweep.planning.rates import Kinds, Rates
from advsweep.sweep.planning.remaining import RunWork, Schedule, Workers, time_of

CONFIG = {"backend": {"name": "tiny"}, "evaluation": {"n": 8}}


@pytest.fixture
def rates():
    """A first start takes 4 s, a later one 1; an update 2, a step .5, a sample .25."""
    seconds = {
        names.FIRST_START_SECONDS: 4.0,
        names.START_SECONDS: 1.0,
        names.PRETRAINING_SECONDS: 2.0,
        names.TRAINING_SECONDS: 0.5,
        names.EVALUATION_SECONDS: 0.25,
    }
    kinds = Kinds()
    return Rates(kinds, {kinds.of(CONFIG, work): value for work, value in seconds.items()}, 1)


def work(**fields):
    return RunWork(config=CONFIG, **fields)


def test_nothing_left_takes_no_time(rates):
    assert time_of([work(), work()], rates, Workers(number=2)).seconds == 0
    assert time_of([], rates, Workers(number=2)).seconds == 0


def test_runs_follow_each_other_on_workers_that_start_once(rates):
    # 10 s each: worker A until 4 + 10 + 1 + 10 = 25, worker B until 14.
    left = time_of([work(steps=20)] * 3, rates, Workers(number=2))
    assert (left.seconds, left.of_runs) == (25, [14, 14, 11])
    # A run that is trained already has its worker, and takes 5 s; the next one starts at 5.
    left = time_of([work(steps=20), work(steps=10, is_active=True)], rates, Workers(number=1))
    assert (left.seconds, left.of_runs) == (5 + 1 + 10, [11, 5])


def test_workers_that_take_one_run_each_all_start(rates):
    crew = Workers(number=1, take_several=False)
    assert time_of([work(steps=20)] * 2, rates, crew).seconds == 28
    crew = Workers(number=1, are_ready=True)
    assert time_of([work(steps=20)] * 2, rates, crew).seconds == 22


def test_the_first_run_of_a_base_makes_it_and_the_others_wait(rates):
    based = work(steps=20, base="a", updates=10, base_samples=8)
    # The first has its base at 4 + 20 + 2 = 26 s and ends at 36; the second waits for it.
    left = time_of([based, based], rates, Workers(number=2))
    assert (left.seconds, left.of_runs) == (36, [36, 14])
    other = work(steps=20, base="b", updates=10, base_samples=8)
    assert time_of([based, other], rates, Workers(number=2)).of_runs == [36, 36]


def test_a_part_that_nobody_has_measured_leaves_no_estimate():
    kinds = Kinds()
    seconds = {names.FIRST_START_SECONDS: 4.0, names.TRAINING_SECONDS: 0.5}
    rates = Rates(kinds, {kinds.of(CONFIG, name): value for name, value in seconds.items()}, 1)
    assert time_of([work(steps=20)], rates, Workers(number=1)).seconds == 14
    # The start of a second run is not known yet, and is small.
    assert time_of([work(steps=20)] * 2, rates, Workers(number=1)).seconds == 24
    left = time_of([work(steps=20), work(steps=20, samples=8)], rates, Workers(number=1))
    assert (left.seconds, left.of_runs, left.unknown) == (None, [14, None], 1)


@pytest.mark.parametrize(
    ("evaluation", "step", "samples"),
    [
        ({"n": 8, "every": 5}, 0, 4 * 8),  # after 5, 10, 15 and 20
        ({"n": 8, "every": 5}, 10, 2 * 8),
        ({"n": 8, "every": 0}, 0, 8),
        ({"n": 8, "every": 5, "n_between": 2}, 0, 3 * 2 + 8),
        ({"n": 8, "every": 0, "at": [1, 2, 30]}, 1, 2 * 8),
        ({"n": 8, "every": 5}, 20, 0),
    ],
)
def test_samples_of_the_evaluations_that_are_left(evaluation, step, samples):
    assert Schedule(**evaluation).samples_after(step, 20) == samples


@pytest.mark.parametrize("every", [0, 1, 3, 7, 20, 30])
@pytest.mark.parametrize("at", [(), (1, 6, 7, 19, 20, 25)])
def test_samples_are_those_of_the_schedule_that_trainings_follow(every, at):
    settings = EvaluationSettings(n=8, k=(1,), every=every, at=at, n_between=3)
    for step in range(21):
        after = [each for each in settings.schedule(20) if each > step]
        samples = sum(8 if each == 20 else 3 for each in after)
        assert Schedule.of(settings).samples_after(step, 20) == samples


def test_samples_of_a_billion_evaluations_are_counted_without_a_list():
    assert Schedule(n=2, every=1).samples_after(0, 2**31 - 1) == 2 * (2**31 - 1)


def test_what_has_no_effect_on_a_unit_makes_no_other_kind():
    kinds = Kinds()
    config = {"backend": {"name": "tiny", "keep_last": 2}, "group_size": 8}
    same = {"backend": {"name": "tiny", "keep_last": 3}, "group_size": 8, "estimator": "fade"}
    step = names.TRAINING_SECONDS
    assert kinds.of(config, step) == kinds.of(same, step)
    assert kinds.of(config, step) != kinds.of({**config, "group_size": 4}, step)
    start = names.START_SECONDS
    assert kinds.of(config, start) == kinds.of({**config, "group_size": 4}, start)
