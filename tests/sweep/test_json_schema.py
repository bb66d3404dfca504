"""The JSON schema accepts what advsweep accepts, and refuses what it refuses."""

from __future__ import annotations

import copy
import json
import re
from pathlib import Path

import pytest
from jsonschema import Draft202012Validator
from jsonschema.exceptions import best_match

from advsweep.components import check, parameters
from advsweep.config.groups import conf_directory
from advsweep.errors import ConfigError
from advsweep.sweep.json_schema import component_schema, make_schema
from advsweep.sweep.planning.plan import make_plan
from advsweep.sweep.registry import GROUPS, config_groups
from advsweep.yaml_files import read_yaml

CONF = conf_directory()
SWEEP_FILES = sorted(
    path for group in ("experiment", "method") for path in (CONF / group).rglob("*.yaml")
)


@pytest.fixture(scope="module")
def validator():
    with config_groups() as groups:
        return Draft202012Validator(make_schema(groups))


@pytest.mark.slow
def test_it_is_a_schema_of_the_draft_it_names(validator):
    schema = validator.schema
    assert schema["$schema"] == Draft202012Validator.META_SCHEMA["$id"]
    Draft202012Validator.check_schema(schema)
    assert set(_references(schema)) <= {f"#/$defs/{name}" for name in schema["$defs"]}


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
def test_sweep_files_and_presets_fit(validator, path):
    assert best_match(validator.iter_errors(read_yaml(path))) is None


ACCEPTED = [
    "description: 'a text: what the file is for'",
    "estimator: {name: fade, h_star: 0.5}",
    "steps: ${prompts_per_step}",
    "sweep: {seeds: [0, 2], blocks: [{estimator: [grpo, fade]}]}",
    "sweep: {common: {method: null}, blocks: [{estimator: 'choice(grpo,fade)'}]}",
    "sweep: {blocks: [{evaluation.k: [[1, 8], [1, 4]]}]}",
    "sweep: {blocks: [{group_size: 'choice(4,8)', steps: 'range(10,30,10)'}]}",
    "sweep: {blocks: [{group_size: [4, 8], seed: [0, 1], exclude: [{group_size: 8, seed: 1}]}]}",
]


def test_components_in_files_fit(validator, write_code):
    idea = write_code("def advantages(rewards): return rewards - rewards.mean()\n")
    for text in (
        f"sweep: {{blocks: [{{estimator: [grpo, '{idea}:advantages']}}]}}",
        f"estimator: {{name: {idea}}}",
    ):
        path = write_code(text, "mine.yaml")
        assert best_match(validator.iter_errors(read_yaml(Path(path)))) is None
        assert make_plan([path], fetch=False).runs


def test_it_has_no_infinite_number(validator):
    text = json.dumps(validator.schema)
    assert not {"Infinity", "NaN"} & set(re.findall(r"\w+", text))


@pytest.mark.parametrize("text", ACCEPTED)
def test_what_a_sweep_takes_fits(validator, tmp_path, text):
    path = tmp_path / "mine.yaml"
    path.write_text(text)
    assert best_match(validator.iter_errors(read_yaml(path))) is None
    assert make_plan([str(path)], fetch=False).runs


MISTAKES = [
    "foo: 1",
    "optimizer: {learning_rate: 1e-4}",
    "optimizer.lr: 1e-4",
    "steps: [10, 20]",
    "description: [a, list]",
    "task: gsm8k",
    "optimizer: null",
    "sweep: {seeds: 0}",
    "sweep: {seed: 3}",
    "sweep: {blocks: {estimator: grpo}}",
    "sweep: {blocks: [{estimator: grop}]}",
    "sweep: {blocks: [{estimator: {name: grpo}}]}",
    "sweep: {blocks: [{optimizer: {lr: 1e-4}}]}",
    "sweep: {blocks: [{estimator.h_stern: 1}]}",
    "sweep: {blocks: [{group_size: [4, 0]}]}",
    "sweep: {blocks: [{evaluation.k: [1, 8]}]}",
    "sweep: {blocks: [{zip: {groupsize: [4, 8]}}]}",
    "sweep: {blocks: [{when: [{steps: 10}]}]}",
    "sweep: {blocks: [{when: [{if: {seed: 0}}]}]}",
    "sweep: {blocks: [{exclude: {seed: 0}}]}",
    "defaults: [{override /estimators: fade}]",
]


@pytest.mark.parametrize("text", MISTAKES)
def test_mistakes_are_marked_and_refused_by_the_sweep_too(validator, tmp_path, text):
    path = tmp_path / "mine.yaml"
    path.write_text(text)
    assert not validator.is_valid(read_yaml(path))
    with pytest.raises(ConfigError):
        make_plan([str(path)], fetch=False)


PROBES = [
    *(-1, 0, 1, 2, 7, -0.5, 0.5, 0.9, 1.5, 10**9, True, False, None, "", "x", "inf", "-inf"),
    *([], [1], [0, 2], [0.5], [-1], ["x"], [None], {}, {"x": "higher"}),
]


@pytest.mark.parametrize("group", GROUPS)
def test_types_and_ranges_are_those_that_components_check(validator, group):
    """Values of every field: the schema and the component's own check agree."""
    for cls in GROUPS[group].classes():
        form = {**component_schema(cls, {}), "$defs": validator.schema["$defs"]}
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


def test_defaults_and_meanings_are_those_of_the_components(validator):
    definitions = validator.schema["$defs"]
    with config_groups() as groups:
        for group, registry in GROUPS.items():
            for cls in registry.classes():
                given = groups.member_values(group, cls.name)
                for field in parameters(cls, given):
                    found = definitions[f"{group}.{field['name']}"]
                    assert field["help"] in found["description"]
                    known = found.get("default")
                    assert known is None or known == field["default"] or field["default"] is None


def test_members_of_config_folders_are_choices(tmp_path):
    (tmp_path / "task").mkdir()
    (tmp_path / "task" / "mine.yaml").write_text("name: countdown\n")
    with config_groups([tmp_path]) as groups:
        valid = Draft202012Validator(make_schema(groups)).is_valid
    assert valid({"sweep": {"blocks": [{"task": "mine"}]}})
    assert not valid({"sweep": {"blocks": [{"task": "yours"}]}})
