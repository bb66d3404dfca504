"""The JSON schemas accept what advsweep accepts, and refuse what it refuses."""

from __future__ import annotations

import copy

import pytest
from jsonschema import Draft202012Validator
from jsonschema.exceptions import best_match

from advsweep.components import check, parameters
from advsweep.config.groups import conf_directory
from advsweep.errors import ConfigError, UnknownNameError
from advsweep.sweep.json_schema import make_schema
from advsweep.sweep.planning.plan import make_plan
from advsweep.sweep.registry import GROUPS, config_groups
from advsweep.yaml_files import read_yaml

CONF = conf_directory()
SWEEP_FILES = sorted(
    path for group in ("experiment", "method") for path in (CONF / group).rglob("*.yaml")
)


@pytest.fixture(scope="module")
def validators():
    """Validators by kind of file, each made once."""
    made = {}

    def validator(kind):
        if kind not in made:
            with config_groups() as groups:
                made[kind] = Draft202012Validator(make_schema(groups, kind))
        return made[kind]

    return validator


@pytest.mark.parametrize(
    "kind",
    [*(pytest.param(kind, marks=pytest.mark.slow) for kind in ("sweep", "run")), *GROUPS],
)
def test_is_a_schema_of_the_draft_it_names(validators, kind):
    schema = validators(kind).schema
    assert schema["$schema"] == Draft202012Validator.META_SCHEMA["$id"]
    Draft202012Validator.check_schema(schema)
    pointers = set(_references(schema))
    assert pointers <= {f"#/$defs/{name}" for name in schema["$defs"]}


def _references(node):
    if isinstance(node, dict):
        if isinstance(node.get("$ref"), str):
            yield node["$ref"]
        for value in node.values():
            yield from _references(value)
    elif isinstance(node, list):
        for value in node:
            yield from _references(value)


@pytest.mark.parametrize("path", SWEEP_FILES, ids=lambda path: str(path.relative_to(CONF)))
def test_sweep_files_and_presets_fit(validators, path):
    assert best_match(validators("sweep").iter_errors(read_yaml(path))) is None


@pytest.mark.parametrize("group", GROUPS)
def test_component_files_fit(validators, group):
    paths = sorted((CONF / group).rglob("*.yaml"))
    assert paths or not (CONF / group).is_dir()
    for path in paths:
        assert best_match(validators(group).iter_errors(read_yaml(path))) is None, path


ACCEPTED = [
    "estimator: fade",
    "estimator: {name: fade, h_star: 0.5}",
    "defaults: [{override /estimator: fade}]\nestimator: {h_star: 0.3}",
    "steps: ${prompts_per_step}",
    "optimizer: {lr: 1e-4}",
    "sweep: {seeds: [0, 2], blocks: [{estimator: [grpo, fade]}]}",
    "sweep: {common: {method: null}, blocks: [{estimator: 'choice(grpo,fade)'}]}",
    "sweep: {blocks: [{evaluation: avg32}]}",
    "sweep: {blocks: [{evaluation.k: [[1, 8], [1, 4]]}]}",
    "sweep: {blocks: [{group_size: 'choice(4,8)', steps: 'range(10,30,10)'}]}",
    "sweep: {blocks: [{zip: {group_size: [4, 8], steps: [20, 10]}}]}",
    "sweep: {blocks: [{group_size: [4, 8], when: [{if: {group_size: 8}, steps: 10}]}]}",
    "sweep: {blocks: [{group_size: [4, 8], seed: [0, 1], exclude: [{group_size: 8, seed: 1}]}]}",
    "sweep: {blocks: [{printed: {gpu_hours: 2, steps: 100, source: Table 1}}]}",
]


@pytest.mark.parametrize("text", ACCEPTED)
def test_what_a_sweep_takes_fits(validators, tmp_path, text):
    path = tmp_path / "mine.yaml"
    path.write_text(text)
    assert best_match(validators("sweep").iter_errors(read_yaml(path))) is None
    assert make_plan([str(path)], fetch=False).runs


def test_fields_of_components_in_fields_fit(validators):
    block = {"task": "gsm8k", "task.reward.delimiter": "x", "estimator.base.std": ["none"]}
    assert validators("sweep").is_valid({"sweep": {"blocks": [block]}})


MISTAKES = {
    "foo: 1": "'foo' was unexpected",
    "optimiser: {lr: 1e-4}": "'optimiser' was unexpected",
    "optimizer: {learning_rate: 1e-4}": "'learning_rate' was unexpected",
    "optimizer.lr: 1e-4": "'optimizer.lr' was unexpected",
    "optimizer: {lr: -1}": "exclusiveMinimum",
    "group_size: 0": "less than the minimum of 1",
    "steps: '20'": "is not of type 'integer'",
    "steps: [10, 20]": "is not of type 'integer'",
    "method: fade": "'method' was unexpected",
    "task: gsm8k": "is not one of",
    "estimator: fad": "is not one of",
    "optimizer: null": "is not one of",
    "generation: {temperature: hot}": "is not of type 'number'",
    "sweep: {seeds: 0}": "less than the minimum of 1",
    "sweep: {seed: 3}": "'seed' was unexpected",
    "sweep: {blocks: []}": "should be non-empty",
    "sweep: {blocks: {estimator: grpo}}": "is not of type 'array'",
    "sweep: {blocks: [{estimator: grop}]}": "is not one of",
    "sweep: {blocks: [{estimator: {name: grpo}}]}": "is not valid under any",
    "sweep: {blocks: [{optimizer: {lr: 1e-4}}]}": "is not valid under any",
    "sweep: {blocks: [{estimator.h_stern: 1}]}": "does not match any of the regexes",
    "sweep: {blocks: [{lr: 1e-4}]}": "does not match any of the regexes",
    "sweep: {blocks: [{group_size: []}]}": "is not valid under any",
    "sweep: {blocks: [{group_size: [4, 0]}]}": "is not valid under any",
    "sweep: {blocks: [{evaluation.k: [1, 8]}]}": "is not of type 'array'",
    "sweep: {blocks: [{zip: {groupsize: [4, 8]}}]}": "does not match any of the regexes",
    "sweep: {blocks: [{when: [{steps: 10}]}]}": "'if' is a required property",
    "sweep: {blocks: [{when: [{if: {}, steps: 10}]}]}": "should be non-empty",
    "sweep: {blocks: [{when: [{if: {seed: 0}}]}]}": "does not have enough properties",
    "sweep: {blocks: [{exclude: {seed: 0}}]}": "is not of type 'array'",
    "sweep: {blocks: [{printed: {steps: 100}}]}": "'gpu_hours' is a required property",
    "defaults: [{override /estimator: fad}]": "is not valid under any",
    "defaults: [{override /estimators: fade}]": "is not valid under any",
}


@pytest.mark.parametrize("text", MISTAKES)
def test_mistakes_are_marked_and_refused_by_the_sweep_too(validators, tmp_path, text):
    path = tmp_path / "mine.yaml"
    path.write_text(text)
    errors = list(validators("sweep").iter_errors(read_yaml(path)))
    messages = [found.message for error in errors for found in _all(error)]
    assert any(
        MISTAKES[text] in message or MISTAKES[text] in _rules(errors) for message in messages
    )
    with pytest.raises(ConfigError):
        make_plan([str(path)], fetch=False)


def _all(error):
    yield error
    for inner in error.context or ():
        yield from _all(inner)


def _rules(errors):
    return {found.validator for error in errors for found in _all(error)}


PROBES = [
    *(-1, 0, 1, 2, 7, -0.5, 0.5, 0.9, 1.5, 10**9, True, False, None, "", "x", "inf", "-inf"),
    *([], [1], [0, 2], [0.5], [-1], ["x"], [None], {}, {"x": "higher"}),
]


@pytest.mark.parametrize("group", GROUPS)
def test_types_and_ranges_are_those_that_components_check(validators, group):
    """Values of every field: the schema and the component's own check agree."""
    definitions = validators(group).schema["$defs"]
    for cls in GROUPS[group].classes():
        form = {"$ref": f"#/$defs/{group}={cls.name}", "$defs": definitions}
        is_valid = Draft202012Validator(form).is_valid
        for field in parameters(cls):
            for value in [*PROBES, field["default"]]:
                if value is None and "none" in field["type"]:
                    continue  # A component takes it for the choice of that name.
                node = {"name": cls.name, field["name"]: value}
                assert is_valid(node) == _fits(cls, field["name"], value), node


def _fits(cls, name, value):
    component = object.__new__(cls)
    for field in parameters(cls):
        given = value if field["name"] == name else field["default"]
        # What has no default must be given, and here another field is looked at.
        if given is None and field["name"] != name and "null" not in field["type"]:
            given = {"a text": "x", "an integer": 1, "a number": 1.0}[field["type"]]
        object.__setattr__(component, field["name"], copy.deepcopy(given))
    try:
        check(component)
    except ConfigError:
        return False
    return True


def test_defaults_and_meanings_are_those_of_the_components(validators):
    definitions = validators("sweep").schema["$defs"]
    with config_groups() as groups:
        for group, registry in GROUPS.items():
            for cls in registry.classes():
                given = groups.member_values(group, cls.name)
                for field in parameters(cls):
                    found = definitions[f"{group}.{field['name']}"]
                    assert field["help"] in found["description"]
                    default = given.get(field["name"], field["default"])
                    if "default" in found:
                        assert found["default"] == default or default is None
                    else:
                        assert "default: " in found["description"] or default is None


def test_defaults_fit_their_own_schema(validators):
    schema = validators("sweep").schema
    found = [value for value in schema["$defs"].values() if "default" in value]
    assert len(found) > 200
    for value in found:
        validator = Draft202012Validator({"anyOf": value["anyOf"], "$defs": schema["$defs"]})
        assert validator.is_valid(value["default"]), value


@pytest.mark.parametrize(
    "overrides",
    [
        ["estimator=grpo,fade"],
        ["+experiment=demo"],
        ["task=bandit", "backend=bandit", "model=table"],
    ],
)
def test_configs_of_runs_fit(validators, overrides):
    config = make_plan(overrides, fetch=False).runs[0].config
    assert best_match(validators("run").iter_errors(config)) is None
    for key in config:
        missing = {k: v for k, v in config.items() if k != key}
        assert not validators("run").is_valid(missing)
    assert not validators("run").is_valid({**config, "stepz": 1})
    fields = {**config["estimator"], "h_stern": 1}
    assert not validators("run").is_valid({**config, "estimator": fields})


def test_members_of_config_folders_are_choices(tmp_path):
    (tmp_path / "task").mkdir()
    (tmp_path / "task" / "mine.yaml").write_text("name: countdown\n")
    with config_groups([tmp_path]) as groups:
        schema = make_schema(groups)
    valid = Draft202012Validator(schema).is_valid
    assert valid({"sweep": {"blocks": [{"task": "mine"}]}})
    assert not valid({"sweep": {"blocks": [{"task": "yours"}]}})


def test_unknown_kind_is_answered_with_the_nearest():
    with config_groups() as groups, pytest.raises(UnknownNameError, match="'estimator'"):
        make_schema(groups, "estimators")
