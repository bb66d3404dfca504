"""What a plan says of stored runs that differ from it."""

from __future__ import annotations

import json
from dataclasses import fields, replace

import pytest

from advsweep.components import option_of
from advsweep.store import Owner, Status
from advsweep.sweep.planning.plan import make_plan
from advsweep.sweep.planning.versions import describe_meeting
from advsweep.sweep.registry import GROUPS
from advsweep.sweep.scheduler.runs import schedule_runs
from advsweep.sweep.worker.environment import new_run

# Bandit: advsweep's own, so that no source is part of its identity.
BANDIT = ("backend=bandit", "task=bandit", "model=table", "optimizer=sgd", "steps=2")

# A plug-in, so that its source is part of the identity.
FAKE = ("backend=fake", "steps=2")


def done_ids(store, plan, *, force=False):
    """Schedule a plan, and record its runs as done; their ids."""
    ids = [scheduled.run_id for scheduled in schedule_runs(plan, store, force=force)]
    for run_id in ids:
        store.leases.claim(run_id, Owner.current())
        store.leases.finish(run_id, Status.DONE)
    return ids


def lines(plan, store, *, force=False, is_stage=False):
    records = store.runs.select(newest_first=False)
    return describe_meeting(plan, store, records, force=force, is_stage=is_stage)


def other_value(default):
    """Another value of an option than a given one."""
    if isinstance(default, bool):
        return not default
    if isinstance(default, (int, float)):
        return default + 1
    if isinstance(default, (list, tuple)):
        return [*default, 16]
    return "other"


# What is planned to try the options of a component, by group and component.
PLANS = {
    "backend": {"bandit": BANDIT, "tiny": ("backend=tiny", "task=routes", "steps=2")},
}


def free_options():
    """Yield group, component and name of options outside the identity, with other values."""
    for group, components in PLANS.items():
        for component in components:
            cls = GROUPS[group].get(component)
            for field in fields(cls):
                if option_of(field).identity:
                    continue
                value = other_value(field.default)
                yield group, component, field.name, json.loads(json.dumps(value))


def test_components_have_options_outside_the_identity() -> None:
    names = {(component, name) for _, component, name, _ in free_options()}
    assert names >= {("tiny", "keep_last"), ("bandit", "exact_k")}


@pytest.mark.parametrize(("group", "component", "name", "value"), list(free_options()))
def test_force_trains_with_the_given_value_and_a_differing_one_is_named(
    store, group, component, name, value
) -> None:
    overrides, key = PLANS[group][component], f"{group}.{name}"
    first = make_plan(overrides, name="same")
    other = make_plan([*overrides, f"{key}={json.dumps(value)}"], name="same")
    assert first.runs[0].run.identity == other.runs[0].run.identity
    [old] = done_ids(store, first)
    assert lines(first, store) == []
    [line] = lines(other, store)
    assert line.startswith(f"1 run that counts as done had {key}=")
    assert "--force" in line
    assert lines(other, store, force=True) == []
    [new] = done_ids(store, other, force=True)
    before, after = (store.runs.select(ids=[i])[0].config[group][name] for i in (old, new))
    assert after == value != before
    assert lines(other, store) == []


def test_runs_that_join_a_sweep_of_others_are_named(store) -> None:
    done_ids(store, make_plan([*BANDIT, "seed=0,1"], name="same"))
    # More seeds of the same sweep, and its own runs, are nothing new.
    assert lines(make_plan([*BANDIT, "seed=0,1,2"], name="same"), store) == []
    assert lines(make_plan([*BANDIT, "seed=0"], name="same"), store) == []
    assert lines(make_plan([*BANDIT, "seed=5"], name="another"), store) == []
    joining = make_plan([*BANDIT, "seed=5,6"], name="same")
    assert lines(joining, store) == [
        "sweep same is there already: 2 runs of this plan join 2 other runs of it; give another "
        "--name to keep them apart"
    ]
    assert lines(joining, store, is_stage=True) == []


def test_runs_of_older_code_that_never_started_leave_the_sweep(store) -> None:
    plan = make_plan([*FAKE, "seed=0,1"], name="same")
    for name in ("same", "other"):
        store.sweeps.add(name, {})
    # As a sweep leaves them that ended before their turn came, and before the code changed.
    older = [
        replace(new_run(planned.run, planned.config), identity=str(place) * 64)
        for place, planned in enumerate(plan.runs)
    ]
    started, waiting = store.runs.add(older, "same")
    # Other settings, another sweep.
    apart = store.runs.add([replace(older[1], identity="8" * 64)], "other")
    kept = store.runs.add([replace(older[1], identity="9" * 64, config={"seed": 7})], "same")
    store.leases.claim(started, Owner.current())
    store.leases.finish(started, Status.DONE)
    assert [line for line in lines(plan, store) if "never started" in line] == [
        "1 run of sweep same that never started is no longer part of it, as the code changed "
        "since; this plan has it anew"
    ]
    new = [scheduled.run_id for scheduled in schedule_runs(plan, store, force=False)]
    members = [run.id for run in store.runs.select(sweep="same", newest_first=False)]
    assert members == [started, *kept, *new]
    assert [run.id for run in store.runs.select(sweep="other")] == apart
    assert store.runs.select(ids=[waiting])[0].status is Status.PENDING
    assert not [line for line in lines(plan, store) if "never started" in line]
