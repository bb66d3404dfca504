"""Config groups: their members, and what a choice of members composes to."""

import re
from dataclasses import dataclass
from pathlib import Path
from typing import ClassVar

import pytest

from advsweep.backends.base import PARAMETERS
from advsweep.components import Component, fields_of, option
from advsweep.config import groups as config_module
from advsweep.config.compose import patch
from advsweep.config.groups import DESCRIPTION, PRESET_GROUPS, conf_directory
from advsweep.errors import AdvsweepWarning, ConfigError, UnknownNameError
from advsweep.sweep.registry import GROUPS, config_groups
from advsweep.yaml_files import read_yaml

MEMBERS = sorted({(path.parent.name, path.stem) for path in conf_directory().glob("*/*.yaml")})


@pytest.fixture(scope="module")
def groups():
    with config_groups() as opened:
        yield opened


def write(directory, member, text):
    path = directory / f"{member}.yaml"
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text, encoding="utf-8")


def test_the_defaults_have_every_group_and_number(groups):
    config = groups.compose({})
    assert set(config) == {*GROUPS, *PARAMETERS}
    assert all(config[group]["name"] for group in GROUPS)
    assert (config["group_size"], config["steps"], config["seed"]) == (8, 200, 0)


@pytest.mark.parametrize(("group", "member"), [m for m in MEMBERS if m[0] not in PRESET_GROUPS])
def test_every_member_with_a_file_builds(group, member, groups):
    node = groups.compose({group: member})[group]
    assert GROUPS[group].build(node, where=group).name == node["name"]


@pytest.mark.parametrize(("group", "member"), [m for m in MEMBERS if m[0] in PRESET_GROUPS])
def test_every_preset_can_be_built(group, member, groups):
    config = groups.compose({group: member})
    for name, registry in GROUPS.items():
        registry.build(config[name], where=name)


def test_no_file_says_only_what_the_registry_knows():
    assert not [
        path
        for group, registry in GROUPS.items()
        for path in (conf_directory() / group).glob("*.yaml")
        if read_yaml(path) == {"name": path.stem}
    ]


def test_a_preset_may_choose_a_component_without_a_file(tmp_path):
    write(
        tmp_path,
        "method/mine",
        "# @package _global_\ndefaults: [{override /estimator: fade}]\nestimator: {h_star: 0.5}\n",
    )
    with config_groups([tmp_path]) as groups:
        composed = groups.compose({"method": "mine"})["estimator"]
    assert composed == {"name": "fade", "h_star": 0.5}


@pytest.mark.security
def test_keys_of_a_preset_that_no_component_can_have_are_kept_to_be_refused(tmp_path):
    """Fields of another component are dropped (`delta`); an order to Hydra is not."""
    write(
        tmp_path, "method/mine", "# @package _global_\nestimator: {delta: 2, _target_: os.system}\n"
    )
    with config_groups([tmp_path]) as groups:
        composed = groups.compose({"method": "mine", "estimator": "grpo"})["estimator"]
    assert composed["_target_"] == "os.system"
    assert "delta" not in composed
    with pytest.raises(UnknownNameError, match=r"_target_: grpo has no parameter '_target_'"):
        GROUPS["estimator"].build(composed)


@pytest.mark.parametrize(
    ("group", "value", "message"),
    [
        ("estimator", "grop", r"^estimator: no estimator is called 'grop'; did you mean 'grpo'"),
        ("method", "gprpo", r"^method: no method is called 'gprpo'; did you mean"),
        ("experiment", "demp", r"did you mean 'demo'"),
        ("estimator", ["grpo"], r"^estimator: expected the name of one estimator"),
        ("estimator", None, r"^estimator: expected the name of one estimator"),
        ("estimator", "ngrpo", r"^estimator: 'ngrpo' cannot be built: "),
        ("stopping", "hyperopt", r"known: acr, none"),
    ],
)
def test_a_member_that_is_none_is_refused(group, value, message, groups):
    with pytest.raises(ConfigError, match=message):
        groups.member(group, value)


@pytest.mark.parametrize(
    ("key", "message"),
    [
        ("estimatr", r"^estimatr: no config group or key .* did you mean 'estimator'\?"),
        ("stpes", r"did you mean 'steps'\?"),
        ("optimiser.lr", r"did you mean optimizer.lr\?"),
        ("method.clip", r"^method.clip: method sets other groups"),
        ("estimator.name", r"choose by estimator=NAME"),
    ],
)
def test_a_key_that_is_none_is_refused(key, message, groups):
    with pytest.raises(ConfigError, match=message):
        groups.check_key(key)


def test_folders_of_the_user_are_searched_first(tmp_path):
    write(tmp_path, "estimator/mine", "name: fade\n")
    write(tmp_path, "optimizer/adamw", "name: adamw\nlr: 0.25\n")
    write(tmp_path, "experiment/study/first", "# @package _global_\nsteps: 7\n")
    with config_groups([tmp_path]) as groups:
        assert "mine" in groups.members("estimator")
        assert groups.compose({"estimator": "mine"})["estimator"] == {"name": "fade"}
        assert groups.compose({})["optimizer"]["lr"] == 0.25
        first = groups.member("experiment", "study/first")
        assert groups.compose({"experiment": first})["steps"] == 7
        with pytest.raises(UnknownNameError, match="did you mean 'mine'"):
            groups.member("estimator", "mien")
    with config_groups() as groups:
        assert "mine" not in groups.members("estimator")


def test_every_file_of_ours_has_a_description(groups):
    for path in conf_directory().glob("*/**/*.yaml"):
        group, _, member = path.relative_to(conf_directory()).as_posix().partition("/")
        if path.name.startswith("_"):  # it holds what others share, and is not listed
            continue
        summary = groups.summary(group, member.removesuffix(".yaml"))
        assert summary, f"{path}: write `description: WHAT IT IS` below its first line"


def test_no_component_of_ours_has_a_field_that_descriptions_would_hide():
    for registry in GROUPS.values():
        for name in registry.modules:
            assert DESCRIPTION not in fields_of(registry.get(name)), name


def test_a_description_is_no_part_of_a_configuration(tmp_path, groups):
    write(tmp_path, "optimizer/slow", "description: |\n  Slow.\n  Very.\nname: adamw\nlr: 1e-6\n")
    write(tmp_path, "method/mine", "# @package _global_\ndescription: Mine\nsteps: 5\n")
    with config_groups([tmp_path]) as opened:
        composed = opened.compose({"optimizer": "slow", "method": "mine"})
        assert opened.member_values("optimizer", "slow") == {"name": "adamw", "lr": 1e-6}
        assert opened.summary("optimizer", "slow") == "Slow."
        assert opened.description("optimizer", "slow") == "Slow. Very."
    plain = groups.compose({})
    assert composed == {**plain, "steps": 5, "optimizer": {"name": "adamw", "lr": 1e-6}}


def test_a_file_with_a_comment_in_place_of_a_description_has_an_empty_one(tmp_path):
    write(tmp_path, "method/mine", "# @package _global_\n# Mine: fewer steps.\nsteps: 5\n")
    with config_groups([tmp_path]) as opened:
        assert opened.compose({"method": "mine"})["steps"] == 5
        assert opened.summary("method", "mine") == opened.description("method", "mine") == ""


@pytest.mark.parametrize(("text", "kind"), [("3", "3"), ("[a, b]", "a list")])
def test_a_description_that_is_no_text_is_told(text, kind, tmp_path):
    write(tmp_path, "optimizer/odd", f"name: adamw\ndescription: {text}\n")
    expected = f"odd.yaml: description: expected a text, got {kind}"
    with config_groups([tmp_path]) as opened:
        with pytest.warns(AdvsweepWarning, match=re.escape(expected)):
            assert opened.summary("optimizer", "odd") == ""
        assert "description" not in opened.compose({"optimizer": "odd"})["optimizer"]


def test_a_field_of_another_package_may_be_called_description(tmp_path, monkeypatch):
    @dataclass(kw_only=True)
    class Described(Component):
        name: ClassVar[str] = "fake"
        description: str = option("", help="a text that changes the training")

    monkeypatch.setitem(GROUPS["backend"]._loaded, "fake", Described)
    write(tmp_path, "backend/mine", "name: fake\ndescription: of the component\n")
    with config_groups([tmp_path]) as opened:
        node = opened.compose({"backend": "mine"})["backend"]
    assert node == {"name": "fake", "description": "of the component"}


@pytest.mark.parametrize("text", ["name: [\n", "defaults:\n  - nothing: here\n", "name: ${\n"])
def test_a_broken_file_is_refused_in_one_line(text, tmp_path):
    write(tmp_path, "task/broken", text)
    with config_groups([tmp_path]) as groups, pytest.raises(ConfigError) as caught:
        patch(groups, groups.compose({"task": "broken"}), {})
    assert "\n" not in str(caught.value)


def test_private_parts_of_hydra_are_used_in_one_module():
    package = Path(config_module.__file__).parents[1]
    for path in package.rglob("*.py"):
        text = path.read_text("utf-8")
        if path.name != "hydra_private.py":
            assert "hydra._internal" not in text, path
            assert "GlobalHydra" not in text, path


def test_the_hydra_of_the_caller_is_left_as_it_was(groups):
    from hydra.core.global_hydra import GlobalHydra

    callers = GlobalHydra.instance().hydra
    assert callers is not None
    with config_groups() as inner:
        inner.compose({})
        assert GlobalHydra.instance().hydra is not callers
    assert GlobalHydra.instance().hydra is callers


@pytest.mark.parametrize("place", ["site-packages/advsweep/conf", "site-packages/conf"])
def test_a_wheel_and_a_checkout_have_them(place, tmp_path, monkeypatch):
    module = tmp_path / "site-packages" / "advsweep" / "config" / "directory.py"
    monkeypatch.setattr(config_module, "__file__", str(module))
    with pytest.raises(ConfigError, match="install advsweep again"):
        conf_directory()
    (tmp_path / place).mkdir(parents=True)
    (tmp_path / place / "config.yaml").touch()
    assert conf_directory() == tmp_path / place


@pytest.mark.parametrize("key", ["hydra.run.dir", "hydra/launcher"])
def test_settings_of_hydra_itself_are_no_keys(key, groups):
    with pytest.raises(UnknownNameError, match=f"{key}: no config group or key is called 'hydra"):
        groups.check_key(key)
