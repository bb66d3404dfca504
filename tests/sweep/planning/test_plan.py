"""Plans: what is built, what is dropped, and what is refused before anything starts."""

from __future__ import annotations

import gc
import tracemalloc

import pytest

from advsweep.backends.build import build_run
from advsweep.errors import ConfigError
from advsweep.sweep.planning.plan import make_plan
from advsweep.sweep.registry import config_groups

FAKE = "backend=fake"
# Hydra takes most of the time of a small plan, so plans share what it composed.
GROUPS = config_groups()


def plan_of(*overrides, **options):
    if "config_dirs" not in options:
        options["groups"] = GROUPS
    return make_plan([FAKE, *overrides], **options)


def refused(*overrides, **options):
    with pytest.raises(ConfigError) as caught:
        plan_of(*overrides, **options)
    return str(caught.value)


def study(folder, text, *overrides):
    """The plan of a sweep file."""
    (folder / "experiment").mkdir(exist_ok=True)
    path = folder / "experiment" / "study.yaml"
    path.write_text(f"# @package _global_\n{text}", encoding="utf-8")
    return make_plan([FAKE, "+experiment=study", *overrides], config_dirs=[folder])


def test_a_run_is_a_plan_of_one():
    plan = plan_of("estimator=fade", "group_size=16", "seed=3", single=True)
    [planned] = plan.runs
    assert plan.name is None
    assert planned.run.estimator.name == "fade"
    assert (planned.run.group_size, planned.run.seed, planned.run.steps) == (16, 3, 200)
    assert planned.config == planned.run.plain()
    assert build_run(planned.config).identity == planned.run.identity


def test_a_sweep_is_the_product_of_what_is_swept():
    plan = plan_of("estimator=grpo,fade,power_alpha", "seed=range(3)")
    found = [(p.run.estimator.name, p.run.seed) for p in plan.runs]
    assert found == [(e, s) for e in ("grpo", "fade", "power_alpha") for s in (0, 1, 2)]
    assert plan.duplicates == []


def test_duplicates_are_dropped_by_identity():
    # 8 and 8.0 are one value of a float, dr_grpo and its alias one estimator.
    plan = plan_of("estimator=dr_grpo,mean_grpo", "optimizer.lr=1,1.0", "seed=0,0")
    [planned] = plan.runs
    assert len(plan.duplicates) == 7
    assert {duplicate.identity for duplicate in plan.duplicates} == {planned.run.identity}


def test_duplicates_say_what_asked_for_them(tmp_path):
    plan = study(
        tmp_path,
        "sweep: {blocks: [{estimator: dr_grpo, seed: [1, 2]}, {estimator: mean_grpo, seed: 2}]}",
    )
    assert [planned.run.seed for planned in plan.runs] == [1, 2]
    [duplicate] = plan.duplicates
    assert duplicate.identity == plan.runs[1].run.identity
    assert {"estimator": "mean_grpo", "seed": 2}.items() <= duplicate.assignment.items()


def test_an_unnamed_sweep_is_named_by_its_content():
    names = [
        plan_of(*overrides).name
        for overrides in (["seed=0,1"], ["seed=1,0"], ["seed=0,1", "executor.jobs=2"], ["seed=0"])
    ]
    assert names[0] == names[1] == names[2] != names[3]
    assert plan_of(name="mine").name == "mine"


@pytest.mark.parametrize(
    ("overrides", "message"),
    [
        ("+foo=1", "foo: no config group or key is called 'foo'"),
        ("+steps.foo=1", "steps.foo: expected steps to be a mapping, got 200"),
        ("+task.foo.bar=1", "task.foo: countdown has no parameter 'foo'"),
        ("++tracking.foo=1", "tracking.foo: none has no parameter 'foo'"),
        ("+sweep.foo=1", "sweep.foo: no such key"),
        ("+estimator.epz=1", "estimator.epz: grpo has no parameter 'epz'; did you mean 'eps'?"),
        (
            "generation.max_tokens=9",
            "generation.max_tokens: sampling has no parameter 'max_tokens'; known: temperature; "
            "generation=transformers and generation=vllm have more",
        ),
        ("optimizer.lr=fast", "optimizer.lr: expected a number, got 'fast'"),
        ("evaluation.k=[1,256]", "evaluation.k: expected every k of pass@k to be at most n=128"),
        ("~estimator", "estimator: expected one of a_grae, "),
        ("estimator=rloo group_size=1", "group_size: expected >= 2, which"),
        ("sweep.blocks.0=3", "expected one of sweep.name, sweep.seeds, sweep.tune"),
    ],
)
def test_one_message_says_what_was_wrong(overrides, message):
    said = refused(*overrides.split())
    assert message in said
    assert "\n" not in said


def test_a_key_that_some_estimators_lack_is_given_to_the_others(tmp_path):
    plan = plan_of("estimator=grpo,asym_grpo,fade", "estimator.delta=0.25,0.75")
    found = [(p.run.estimator.name, p.config["estimator"].get("delta")) for p in plan.runs]
    assert found == [("grpo", None), ("asym_grpo", 0.25), ("asym_grpo", 0.75), ("fade", None)]
    assert plan.warnings == [
        "estimator.delta: set for asym_grpo alone, as fade, grpo have no such parameter"
    ]
    blocks = "sweep: {blocks: [{estimator: grpo}, {estimator: [asym_grpo, fade]}]}"
    over = study(tmp_path, blocks, "estimator.delta=0.25")
    assert [p.config["estimator"].get("delta") for p in over.runs] == [None, 0.25, None]


def test_a_run_has_one_value_of_each_key():
    said = refused("estimator=grpo,fade", single=True)
    assert "expected one value" in said
    assert "`advsweep sweep`" in said


def test_what_is_no_part_of_a_run_cannot_be_swept():
    assert "executor: expected the same for all runs" in refused("executor.jobs=1,2")


@pytest.mark.slow
def test_runs_of_a_large_plan_take_little_memory_each():
    """Plans of 100,000 runs: components and config nodes that are alike are one object."""

    def kept(seeds):
        plan = make_plan(
            ["estimator=grpo,a_grae", "group_size=4,8", f"seed=range({seeds})"], groups=GROUPS
        )
        assert len(plan.runs) == 4 * seeds
        gc.collect()
        return tracemalloc.get_traced_memory()[0]

    kept(2)  # the imports
    tracemalloc.start()
    try:
        before = kept(5)
        each = (kept(45) - before) / 160
    finally:
        tracemalloc.stop()
    assert each < 3000
