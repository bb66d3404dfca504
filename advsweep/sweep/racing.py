"""Raced sweeps: seeds are trained in rounds, until nothing that they could settle is open.

The plan has all runs that a race may need. After each round the results in the store say which are
next (`advsweep.store.races`), so that an interrupted race goes on where it was, on any executor.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable
from dataclasses import replace
from typing import TYPE_CHECKING

from advsweep.config.space import SEED
from advsweep.errors import ConfigError
from advsweep.statistics.racing import level_of
from advsweep.statistics.sequences import first_look
from advsweep.store.races import RACE_KEY, RaceRecord, read_race
from advsweep.sweep.events import SweepResult
from advsweep.sweep.labels import varying_keys
from advsweep.sweep.tuning import check_metric
from advsweep.tasks.controls import titled

if TYPE_CHECKING:
    from advsweep.store import Store
    from advsweep.sweep.planning.plan import Plan, PlannedRun


def plan_race(plan: Plan) -> Plan:
    """Return the plan of a race with its arms in the spec.

    Raises:
        ConfigError: so few seeds cannot reach significance, or the runs have no such pass@k.
    """
    race = plan.race
    assert race is not None
    arms: dict[str, list[PlannedRun]] = {}
    for planned in plan.runs:
        arm = sorted((k, v) for k, v in planned.assignment.items() if k != SEED)
        arms.setdefault(repr(arm), []).append(planned)
        scores = [f"pass@{k}" for k in planned.run.evaluation.k]
        is_score = race.metric.startswith("pass@") and not planned.run.backend.external
        if is_score and race.metric not in scores:
            raise ConfigError(
                f"sweep.race.metric: expected one of {', '.join(scores)}, which evaluation.k "
                f"makes, got '{race.metric}'"
            )
    to_baseline = level_of(len(arms), race.alpha, baseline=True)
    to_best = level_of(len(arms), race.alpha, baseline=len(arms) == 2)
    least = first_look(min(to_baseline, to_best))
    if race.most < least:
        raise ConfigError(
            f"sweep.race.most: expected at least {least} seeds, as fewer cannot reach "
            f"significance with {len(arms)} arms at alpha {race.alpha:g}, got {race.most}"
        )
    configs = [runs[0].config for runs in arms.values()]
    listed = []
    for runs, config, keys in zip(arms.values(), configs, varying_keys(configs), strict=True):
        name = " ".join([titled(config["estimator"]["name"], config), *keys])
        listed.append({"name": name, "runs": [planned.run.identity for planned in runs]})
    node = {"settings": race.plain(), "arms": listed}
    return replace(plan, spec={**plan.spec, RACE_KEY: node})


def execute_race(
    plan: Plan, store: Store, run: Callable[[Plan, RaceRecord], SweepResult]
) -> SweepResult:
    """Train runs of a race in rounds until it is over.

    Each call tries a run once: one that was killed twice, say, leaves its arm open.

    Args:
        plan: as `plan_race` returns it.
        run: executes the plan of a round; the record says how the race stands before it.

    Returns:
        The result of all rounds. The race is not over if the last one was stopped, or was submitted
        to a queue.

    Raises:
        UnknownNameError: the runs have no such metric.
    """
    assert plan.name is not None
    store.sweeps.add(plan.name, {**plan.spec, "settings": plan.settings()})
    results: list[SweepResult] = []
    tried: set[str] = set()
    # Several ways to evaluate one training have one identity.
    runs_of: dict[str, list[PlannedRun]] = defaultdict(list)
    for planned in plan.runs:
        runs_of[planned.run.identity].append(planned)
    while True:
        record = read_race(store, plan.name)
        assert record is not None
        check_metric(store, plan.name, record.race.metric, "sweep.race.metric")
        wanted = [identity for identity in record.wanted if identity not in tried]
        if not wanted or (results and results[-1].is_cut_short):
            return SweepResult.of_stages(results)
        tried.update(wanted)
        runs = [planned for identity in wanted for planned in runs_of[identity]]
        results.append(run(replace(plan, runs=runs, duplicates=()), record))
