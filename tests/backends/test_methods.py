"""Presets of whole methods: what they set, what beats them, and that they train."""

import re

import pytest
import yaml

from advsweep.config.groups import conf_directory
from advsweep.errors import ConfigError
from advsweep.sweep.planning.plan import make_plan

METHODS = {path.stem: path for path in sorted((conf_directory() / "method").glob("*.yaml"))}
AXES = ("estimator", "objective", "rollout")
# What the papers are called by; every preset says which one it is from.
SOURCES = re.compile(r"arXiv:\d{4}\.\d{5}|Advantage Collapse in GRPO")
# P3 = two-stage view, App. C.2.
P3 = {"kl_coef": 0.001, "entropy_coef": 0.0001}
# The longest answer of countdown.
CONSTANT = {"aggregation": "constant", "max_tokens": 10}
DCPO = {"clip_low": 0.16, "clip_high": 0.2, "dual_clip": 10.0, "kl_coef": 0.0}
DAPO = {"aggregation": "token_mean", "clip_low": 0.2, "clip_high": 0.28}


def planned(*overrides):
    return make_plan(overrides, single=True).runs[0].run


@pytest.fixture(params=METHODS)
def method(request):
    return str(request.param)


def test_every_preset_names_its_axes_and_its_source(method):
    text = METHODS[method].read_text(encoding="utf-8")
    assert text.startswith("# @package _global_\n")
    content = yaml.safe_load(text)
    assert SOURCES.search(content.pop("description"))
    chosen = [key for entry in content.pop("defaults") for key in entry]
    assert sorted(chosen) == [f"override /{axis}" for axis in AXES]
    # Group size, learning rate and the like are no part of a method.
    assert content.keys() <= set(AXES)


@pytest.mark.parametrize(
    ("method", "estimator", "objective", "rollout"),
    [
        ("grpo", {"name": "grpo"}, {"name": "clipped", "clip_low": 0.2, "clip_high": 0.2}, "plain"),
        ("dr_grpo", {"name": "dr_grpo"}, CONSTANT, "plain"),
        ("dapo", {"name": "grpo"}, DAPO, "dynamic_sampling"),
        ("dapo_static", {"name": "grpo"}, DAPO, "plain"),
        ("filter_drop", {"name": "grpo"}, {"aggregation": "seq_mean_token_mean"}, "filter_drop"),
        ("grpo_n", {"name": "grpo_n"}, {"ratio": "token", **P3}, "plain"),
        ("gspo", {"name": "grpo"}, {"ratio": "sequence", "clip_high": 0.2, **P3}, "plain"),
        ("gspo_n", {"name": "grpo_n"}, {"ratio": "sequence", "clip_high": 0.2, **P3}, "plain"),
        (
            "gpg",
            {"name": "gpg", "f_norm": "1"},
            {"name": "cross_entropy", "aggregation": "token_mean", "kl_coef": 0.0},
            "plain",
        ),
        ("aapo", {"delta_low": -0.2, "delta_high": 0.28}, {"name": "cross_entropy"}, "reference"),
        ("a_grae", {"name": "a_grae", "alpha": 1.0}, {"clip_high": 0.2}, "plain"),
        ("a_grae_on_dr_grpo", {"name": "a_grae"}, CONSTANT, "plain"),
        ("a_grae_on_dapo", {"name": "a_grae"}, DAPO, "plain"),
        ("avspo", {"name": "avspo"}, {"clip_high": 0.2, "kl_coef": 0.0}, "plain"),
        (
            "dcpo",
            {"name": "dcpo"},
            {"name": "adaptive_clipped", "aggregation": "seq_sum_token_mean", **DCPO},
            "plain",
        ),
        (
            "grpo_lead",
            {"name": "grpo_lead", "alpha": 0.05},
            {"name": "clipped", "clip_high": 0.2, "kl_coef": 0.0},
            "plain",
        ),
        ("fade", {"name": "fade"}, {"clip_low": 0.2, "clip_high": 0.2, **CONSTANT}, "plain"),
        ("power_alpha", {"name": "power_alpha", "alpha": 2.0}, CONSTANT, "plain"),
        ("asym_grpo", {"name": "asym_grpo", "delta": 0.5}, CONSTANT, "plain"),
        ("maxrl", {"name": "maxrl"}, CONSTANT, "plain"),
    ],
)
def test_presets_set_what_their_papers_have(method, estimator, objective, rollout):
    config = planned(f"method={method}").plain()
    assert config["estimator"].items() >= estimator.items()
    assert config["objective"].items() >= objective.items()
    assert config["rollout"]["name"] == rollout


@pytest.mark.slow
def test_the_command_line_beats_a_preset():
    objective = planned("objective.clip_high=0.3", "method=dapo").plain()["objective"]
    assert objective["clip_high"] == 0.3
    assert objective["aggregation"] == "token_mean"
    run = planned("method=dapo", "estimator=fade")
    assert run.estimator.name == "fade"
    assert run.plain()["objective"].items() >= DAPO.items()
    assert run.rollout.name == "dynamic_sampling"


@pytest.mark.slow
def test_what_a_preset_sets_of_another_component_is_left_out():
    objective = planned("method=dapo", "objective=cross_entropy").plain()["objective"]
    assert objective["name"] == "cross_entropy"
    assert objective["aggregation"] == "token_mean"
    assert planned("method=a_grae_on_dr_grpo", "estimator=rloo").estimator.name == "rloo"
    assert planned("method=dapo", "objective=clipped").plain()["objective"].items() >= DAPO.items()
    with pytest.raises(ConfigError, match="cross_entropy has no parameter 'clip_low'"):
        planned("method=dapo", "objective=cross_entropy", "objective.clip_low=0.1")


@pytest.mark.slow
def test_a_preset_is_no_part_of_a_run():
    """A run is what its axes are, whichever way they were set."""
    assert planned("method=grpo").identity == planned().identity
    spelt = ["estimator=dr_grpo", "objective.aggregation=constant", "objective.max_tokens=10"]
    assert planned("method=dr_grpo").identity == planned(*spelt).identity


@pytest.mark.slow
@pytest.mark.parametrize(
    "method", ["asym_grpo", "a_grae_on_dr_grpo", "dr_grpo", "fade", "maxrl", "power_alpha"]
)
def test_losses_are_divided_by_the_length_of_the_runs_own_completions(method):
    pytest.importorskip("trl")
    trl = ["backend=trl", "model=hf", "model.path=a/model", "generation=transformers"]

    def divisor(*overrides):
        plan = make_plan([f"method={method}", *trl, *overrides], single=True, fetch=False)
        return plan.runs[0].config["objective"]["max_tokens"]

    assert divisor("task=gsm8k") == 512
    assert divisor("task=gsm8k", "generation.max_tokens=64") == 64
