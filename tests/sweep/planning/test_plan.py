"""Plans: what is built, what is dropped, and what is refused before anything starts."""

from __future__ import annotations

import gc
import tracemalloc
from pathlib import Path
from typing import Any

import pytest

from advsweep.backends.build import build_run
from advsweep.errors import ConfigError
from advsweep.sweep.planning.plan import Plan, make_plan
from advsweep.sweep.registry import config_groups

FAKE = "backend=fake"
# Hydra takes most of the time of a small plan, so plans share what it composed.
GROUPS = config_groups()


def plan_of(*overrides: str, **options: Any) -> Plan:
    if "config_dirs" not in options:
        options["groups"] = GROUPS
    return make_plan([FAKE, *overrides], **options)


def refused(*overrides: str, **options: Any) -> str:
    with pytest.raises(ConfigError) as caught:
        plan_of(*overrides, **options)
    return str(caught.value)


def study(folder: Path, text: str, *overrides: str) -> Plan:
    """The plan of a sweep file."""
    (folder / "experiment").mkdir(exist_ok=True)
    path = folder / "experiment" / "study.yaml"
    path.write_text(f"# @package _global_\n{text}", encoding="utf-8")
    return make_plan([FAKE, "+experiment=study", *overrides], config_dirs=[folder])


def test_a_run_is_a_plan_of_one() -> None:
    plan = plan_of("estimator=fade", "group_size=16", "seed=3", single=True)
    [planned] = plan.runs
    assert plan.name is None
    assert planned.run.estimator.name == "fade"
    assert (planned.run.group_size, planned.run.seed, planned.run.steps) == (16, 3, 200)
    assert planned.config == planned.run.plain()
    assert build_run(planned.config).identity == planned.run.identity


def test_a_sweep_is_the_product_of_what_is_swept() -> None:
    plan = plan_of("estimator=grpo,fade,power_alpha", "seed=range(3)")
    found = [(p.run.estimator.name, p.run.seed) for p in plan.runs]
    assert found == [(e, s) for e in ("grpo", "fade", "power_alpha") for s in (0, 1, 2)]
    assert plan.duplicates == []


def test_overrides_beat_an_experiment() -> None:
    plan = plan_of("experiment=demo", "sweep.seeds=1", "estimator=grpo", "steps=9")
    [planned] = plan.runs
    assert (planned.run.steps, planned.run.seed) == (9, 0)


def test_experiments_are_united(tmp_path: Path) -> None:
    folder = tmp_path / "experiment"
    folder.mkdir()
    for name, estimator in (("one", "grpo"), ("two", "fade")):
        node = f"sweep: {{seeds: 2, blocks: [{{estimator: {estimator}}}]}}"
        (folder / f"{name}.yaml").write_text(f"# @package _global_\n{node}\n", encoding="utf-8")
    plan = plan_of("+experiment=one,two", config_dirs=[tmp_path])
    assert plan.name == "one+two"
    assert [p.run.estimator.name for p in plan.runs] == ["grpo", "grpo", "fade", "fade"]


def test_blocks_give_keys_to_those_that_have_them(tmp_path: Path) -> None:
    plan = study(
        tmp_path,
        """
sweep:
  name: fade-vs-static
  seeds: 5
  common: {group_size: [4, 8]}
  blocks:
    - {estimator: grpo}
    - {estimator: asym_grpo, estimator.delta: [0.3, 0.5, 2]}
    - {estimator: power_alpha, estimator.alpha: [1, 2, 3]}
    - {estimator: fade, zip: {estimator.h_star: [0.3, 0.5], optimizer.lr: [1e-4, 3e-4]}}
""",
    )
    assert plan.name == "fade-vs-static"
    found = [
        (
            c["estimator"]["name"],
            *(c["estimator"].get(key) for key in ("delta", "alpha", "h_star")),
            c["optimizer"]["lr"],
            c["group_size"],
            c["seed"],
        )
        for c in (planned.config for planned in plan.runs)
    ]
    alone: list[tuple[Any, ...]] = [("grpo", None, None, None, 3e-4)]
    alone += [("asym_grpo", delta, None, None, 3e-4) for delta in (0.3, 0.5, 2)]
    alone += [("power_alpha", None, alpha, None, 3e-4) for alpha in (1, 2, 3)]
    alone += [("fade", None, None, 0.3, 1e-4), ("fade", None, None, 0.5, 3e-4)]
    assert found == [(*one, size, seed) for one in alone for size in (4, 8) for seed in range(5)]


def test_a_method_sets_three_axes() -> None:
    [planned] = plan_of("method=dr_grpo").runs
    assert planned.run.estimator.name == "dr_grpo"
    assert planned.config["objective"]["aggregation"] == "constant"


def test_duplicates_are_dropped_by_identity() -> None:
    # 8 and 8.0 are one value of a float, dr_grpo and its alias one estimator.
    plan = plan_of("estimator=dr_grpo,mean_grpo", "optimizer.lr=1,1.0", "seed=0,0")
    [planned] = plan.runs
    assert len(plan.duplicates) == 7
    assert {duplicate.identity for duplicate in plan.duplicates} == {planned.run.identity}


def test_duplicates_say_what_asked_for_them(tmp_path: Path) -> None:
    plan = study(
        tmp_path,
        "sweep: {blocks: [{estimator: dr_grpo, seed: [1, 2]}, {estimator: mean_grpo, seed: 2}]}",
    )
    assert [planned.run.seed for planned in plan.runs] == [1, 2]
    [duplicate] = plan.duplicates
    assert duplicate.identity == plan.runs[1].run.identity
    assert {"estimator": "mean_grpo", "seed": 2}.items() <= duplicate.assignment.items()


def test_conditions_give_and_take_runs(tmp_path: Path) -> None:
    plan = study(
        tmp_path,
        """
sweep:
  common: {group_size: [4, 8]}
  blocks:
    - {estimator: grpo}
    - estimator: asym_grpo
      estimator.delta: [0.5, 2]
      when: [{if: {group_size: 8}, optimizer.lr: [1e-4, 3e-4]}]
      exclude: [{estimator.delta: 2, group_size: 4}]
""",
    )
    configs = [planned.config for planned in plan.runs]
    assert [
        (c["estimator"].get("delta"), c["group_size"], c["optimizer"]["lr"]) for c in configs
    ] == [
        (None, 4, 3e-4),
        (None, 8, 3e-4),
        (0.5, 4, 3e-4),
        (0.5, 8, 1e-4),
        (0.5, 8, 3e-4),
        (2.0, 8, 1e-4),
        (2.0, 8, 3e-4),
    ]


def test_a_sweep_of_which_nothing_is_left_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"^sweep: expected at least one run, got none"):
        study(tmp_path, "sweep: {common: {seed: [1, 2], exclude: [{seed: [1, 2]}]}}")


def test_conditions_may_be_given_on_the_command_line() -> None:
    blocks = "sweep.blocks=[{estimator:grpo},{estimator:asym_grpo,estimator.delta:[0.3,0.5]}]"
    common = "sweep.common={group_size:[4,8],exclude:[{estimator:grpo,group_size:4}]}"
    plan = plan_of(blocks, common, "seed=0,1")
    found = [(p.config["estimator"].get("delta"), p.run.group_size, p.run.seed) for p in plan.runs]
    assert found == [
        *((None, 8, 0), (None, 8, 1)),
        *((0.3, 4, 0), (0.3, 4, 1), (0.3, 8, 0), (0.3, 8, 1)),
        *((0.5, 4, 0), (0.5, 4, 1), (0.5, 8, 0), (0.5, 8, 1)),
    ]


def test_one_training_may_be_evaluated_in_two_ways() -> None:
    plan = plan_of("evaluation.n=128,256")
    assert len(plan.runs) == 2
    assert len({p.run.identity for p in plan.runs}) == 1


def test_an_unnamed_sweep_is_named_by_its_content() -> None:
    names = [
        plan_of(*overrides).name
        for overrides in (["seed=0,1"], ["seed=1,0"], ["seed=0,1", "executor.jobs=2"], ["seed=0"])
    ]
    assert names[0] == names[1] == names[2] != names[3]
    assert plan_of(name="mine").name == "mine"


@pytest.mark.parametrize(
    ("overrides", "message"),
    [
        ("estimator=grop", "estimator: no estimator is called 'grop'; did you mean 'grpo'"),
        ("estimatr=grpo", "estimatr: no config group or key is called 'estimatr'; did you mean"),
        ("stepz=3", "did you mean 'steps'?"),
        ("+foo=1", "foo: no config group or key is called 'foo'"),
        ("++foo.bar=1", "foo.bar: no config group or key is called 'foo'"),
        ("+steps.foo=1", "steps.foo: expected steps to be a mapping, got 200"),
        ("+task.foo.bar=1", "task.foo: countdown has no parameter 'foo'"),
        ("+optimizer.match_reference.foo=1", "match_reference.foo: dr_grpo has no parameter 'foo'"),
        ("++tracking.foo=1", "tracking.foo: none has no parameter 'foo'"),
        ("+sweep.foo=1", "sweep.foo: no such key"),
        ("+estimator.epz=1", "estimator.epz: grpo has no parameter 'epz'; did you mean 'eps'?"),
        ("optimizer.lrr=1", "optimizer.lrr: adamw has no parameter 'lrr'; did you mean 'lr'?"),
        ("executor.job=1", "executor.job: local has no parameter 'job'; did you mean 'jobs'?"),
        (
            "generation.max_tokens=9",
            "generation.max_tokens: sampling has no parameter 'max_tokens'; known: temperature; "
            "generation=transformers and generation=vllm have more",
        ),
        ("steps=abc", "steps: expected an integer, got 'abc'"),
        ("steps=", "steps: expected an integer, got ''"),
        ("steps=0", "steps: expected >= 1, got 0"),
        ("seed=-1", "seed: expected >= 0, got -1"),
        ("optimizer.lr=0", "optimizer.lr: expected > 0, got 0"),
        ("optimizer.lr=fast", "optimizer.lr: expected a number, got 'fast'"),
        ("executor.jobs=0", "executor.jobs: expected >= 1, got 0"),
        ("evaluation.k=[1,256]", "evaluation.k: expected every k of pass@k to be at most n=128"),
        ("~estimator", "estimator: expected one of a_grae, "),
        ("estimator=null", "estimator: expected one of a_grae, "),
        ("estimator=asym_grpo estimator.delta=0", "estimator.delta: expected > 0, got 0"),
        ("estimator=rloo group_size=1", "group_size: expected >= 2, which estimator 'rloo' needs"),
        ("estimator.name=fade", "estimator.name: expected another key; choose by estimator=NAME"),
        ("sweep.sedes=3", "sweep.sedes: no such key; did you mean 'seeds'?"),
        ("sweep.blocks.0=3", "expected one of sweep.name, sweep.seeds, sweep.tune"),
    ],
)
def test_one_message_says_what_was_wrong(overrides: str, message: str) -> None:
    said = refused(*overrides.split())
    assert message in said
    assert "\n" not in said


def test_a_key_that_some_estimators_lack_is_given_to_the_others(tmp_path: Path) -> None:
    plan = plan_of("estimator=grpo,asym_grpo,fade", "estimator.delta=0.25,0.75")
    found = [(p.run.estimator.name, p.config["estimator"].get("delta")) for p in plan.runs]
    assert found == [("grpo", None), ("asym_grpo", 0.25), ("asym_grpo", 0.75), ("fade", None)]
    assert plan.warnings == [
        "estimator.delta: set for asym_grpo alone, as fade, grpo have no such parameter"
    ]
    blocks = "sweep: {blocks: [{estimator: grpo}, {estimator: [asym_grpo, fade]}]}"
    over = study(tmp_path, blocks, "estimator.delta=0.25")
    assert [p.config["estimator"].get("delta") for p in over.runs] == [None, 0.25, None]


def test_a_key_that_some_estimators_of_a_search_lack_is_refused() -> None:
    said = refused("estimator=grpo,asym_grpo,fade", "estimator.delta=0.5", strict=True)
    assert "estimator.delta: grpo has no parameter 'delta'; known: eps, " in said


def test_a_key_that_no_estimator_has_gets_the_nearest_name() -> None:
    said = refused("estimator=grpo,asym_grpo", "estimator.dleta=0.5")
    assert "asym_grpo has no parameter 'dleta'; did you mean 'delta'? (1 run)" in said


def test_all_keys_and_names_that_do_not_exist_are_listed(tmp_path: Path) -> None:
    with pytest.raises(ConfigError) as caught:
        study(
            tmp_path,
            """
sweep:
  blocks:
    - {estimator: grpo, estimator.delta: 2, estimator.epz: 3, groupsize: 4}
    - {estimator: [asym_grpo, fade], estimator.delta: 2, steps: 0}
    - {estimator: grop, estimator.delta: 2, +steps: 3}
    - {estimator: asym_grpo, estimator.delta: 1, groupsize: 4}
""",
        )
    shown = [line.split(";")[0] for line in str(caught.value).splitlines()]
    assert shown == [
        "5 of 5 runs cannot be built:",
        "  groupsize: no config group or key is called 'groupsize'",
        "  steps: expected >= 1, got 0 (2 runs)",
        "  estimator: no estimator is called 'grop'",
    ]


def test_errors_of_several_runs_come_together() -> None:
    said = refused("steps=0,1,2", "group_size=0,8", "seed=0,1")
    assert said.splitlines() == [
        "8 of 12 runs cannot be built:",
        "  group_size: expected >= 1, got 0 (6 runs)",
        "  steps: expected >= 1, got 0 (2 runs)",
    ]


def test_of_many_errors_the_first_are_listed() -> None:
    lines = refused("optimizer.lr=range(-9,1)").splitlines()
    assert lines[0] == "10 of 10 runs cannot be built:"
    assert lines[-1] == "  ... and 5 errors more"
    assert len(lines) == 7


def test_a_run_has_one_value_of_each_key() -> None:
    said = refused("estimator=grpo,fade", single=True)
    assert "expected one value" in said
    assert "`advsweep sweep`" in said


def test_a_run_is_no_sweep_file() -> None:
    said = refused("experiment=demo", single=True)
    assert said.startswith("demo: expected one run, got a sweep of ")
    said = refused("sweep.seeds=3", single=True)
    assert said.startswith("sweep: expected one run, got a sweep of 3;")


def test_what_is_no_part_of_a_run_cannot_be_swept() -> None:
    assert "executor: expected the same for all runs" in refused("executor.jobs=1,2")


def test_a_sweep_file_with_a_misspelt_key_is_refused(tmp_path: Path) -> None:
    folder = tmp_path / "experiment"
    folder.mkdir()
    path = folder / "study.yaml"
    for text, message in {
        "sweep: {block: []}": "sweep.block: no such key; did you mean 'blocks'?",
        "sweep: {blocks: [{estimatr: grpo}]}": "did you mean 'estimator'?",
        "sweep: {blocks: [{1: 2}]}": "no config group or key is called '1'",
        "sweep: {blocks: [{estimator: grop}]}": "did you mean 'grpo'",
        "stepz: 3": "stepz: a run has no such key; did you mean 'steps'?",
    }.items():
        path.write_text(f"# @package _global_\n{text}\n", encoding="utf-8")
        assert message in refused("+experiment=study", config_dirs=[tmp_path])


def test_runs_of_a_large_plan_take_little_memory_each() -> None:
    """Plans of 100,000 runs: components and config nodes that are alike are one object."""

    def kept(seeds: int) -> int:
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


def test_runs_that_share_components_are_what_they_are_alone() -> None:
    plan = make_plan(["estimator=grpo,a_grae", "optimizer.lr=1e-3,2e-3", "seed=0,1"])
    first, second = plan.runs[0], plan.runs[1]
    assert first.config["estimator"] is second.config["estimator"]
    for planned in plan.runs:
        alone = build_run(planned.config)
        assert (alone.identity, alone.plain()) == (planned.run.identity, planned.config)
