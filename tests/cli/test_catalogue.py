"""`advsweep list`, `keys`, `schema` and `init`: what there is, ours and the user's own."""

from __future__ import annotations

import csv
import io
import json
import shutil
import subprocess

import pytest
import yaml
from jsonschema import Draft202012Validator

from advsweep.cli.commands.describe import find_component
from advsweep.cli.commands.init import NAMES, SCHEMA
from advsweep.cli.own_data import INIT_FILES
from advsweep.config.groups import conf_directory
from advsweep.errors import AdvsweepWarning
from advsweep.sweep.planning.plan import make_plan
from advsweep.sweep.registry import GROUPS, config_groups
from advsweep.yaml_files import read_yaml


@pytest.fixture
def listed(in_process):
    def called(*arguments, form="json"):
        code, out, err = in_process(*arguments, "--format", form)
        assert code == 0, err
        return json.loads(out) if form == "json" else out

    return called


METHOD = """# @package _global_
description: |
  Mine, a wider clip.
  Of no paper.
defaults:
  - override /estimator: rloo
  - override /objective: clipped
  - override /rollout: plain

objective:
  clip_high: 0.5
"""


def test_a_file_may_take_its_component_from_its_defaults_list(listed, tmp_path):
    (tmp_path / "optimizer").mkdir()
    text = "defaults: [pretrained, _self_]\nbeta1: 0.8\n"
    (tmp_path / "optimizer" / "mine.yaml").write_text(text, encoding="utf-8")
    options = ("--config-dir", str(tmp_path))
    assert "mine" in {row["name"] for row in listed("list", "optimizers", *options)}
    rows = {row["key"]: row for row in listed("describe", "optimizer=mine", *options)}
    assert {row["of"] for row in rows.values()} == {"adamw"}
    assert rows["optimizer.lr"]["default"] == 1e-6
    assert rows["optimizer.beta1"]["default"] == 0.8


@pytest.mark.slow
def test_methods_are_listed_with_what_they_set(listed, tmp_path):
    found = {row["name"]: row for row in listed("list", "methods")}
    assert set(found) == {path.stem for path in (conf_directory() / "method").glob("*.yaml")}
    assert found["a_grae_on_dr_grpo"]["estimator"] == {"name": "a_grae", "base": "dr_grpo"}
    (tmp_path / "method").mkdir()
    (tmp_path / "method" / "gspo.yaml").write_text(METHOD, encoding="utf-8")
    # A folder of one's own comes first, and a table shows axes as they are typed.
    text = listed("list", "methods", "--config-dir", str(tmp_path), form="csv")
    rows = {row["name"]: row for row in csv.DictReader(io.StringIO(text))}
    assert rows["gspo"]["objective"] == "clipped clip_high=0.5"
    assert rows["gspo"]["description"] == "Mine, a wider clip."


def test_a_file_that_cannot_be_read_does_not_hide_the_others(in_process, tmp_path):
    folder = tmp_path / "optimizer"
    folder.mkdir()
    (folder / "broken.yaml").write_text("name: [\n", encoding="utf-8")
    (folder / "other.yaml").write_text("defaults:\n  - nothing: here\n", encoding="utf-8")
    (folder / "sound.yaml").write_text("name: adamw\ndescription: [1]\n", encoding="utf-8")
    options = ("--config-dir", str(tmp_path))
    with pytest.warns(AdvsweepWarning, match=r"sound\.yaml: description: expected a text, got a"):
        code, out, err = in_process("list", "optimizers", *options, "--format", "json")
    assert code == 0
    names = {row["name"] for row in json.loads(out)}
    assert "sound" in names
    assert not names & {"broken", "other"}
    broken, other = err.splitlines()
    assert f"{folder / 'broken.yaml'}, line 2" in broken
    assert "cannot compose optimizer=other" in other
    code, out, err = in_process("describe", "optimizer=broken", *options)
    assert (code, out) == (2, "")
    assert f"{folder / 'broken.yaml'}, line 2" in err


def test_unknown_lists_are_answered_with_the_nearest(refused):
    refused(["did you mean 'estimators'?"], "list", "estimatrs")


# keys


def test_defaults_are_those_of_a_run(listed):
    rows = {row["key"]: row["default"] for row in listed("keys")}
    config = make_plan([], single=True).runs[0].config
    assert set(GROUPS) <= set(rows)
    for group, node in config.items():
        if not isinstance(node, dict):
            assert rows[group] == node
            continue
        assert rows[group] == node["name"]
        for key, value in node.items():
            if key != "name":
                if isinstance(value, dict):  # a component, or the parts of a reward by name
                    value = value.get("name", next(iter(value)))
                # A component may replace null by what its other options mean.
                assert rows[f"{group}.{key}"] in (value, "null"), key


def test_words_search_keys_and_meanings(listed):
    assert {row["key"] for row in listed("keys", "learning", "rate")} >= {"optimizer.lr"}
    assert listed("keys", "h_star")[0]["key"] == "estimator.h_star"
    assert {row["key"] for row in listed("keys", "group_size")} >= {"group_size"}


def test_unknown_keys_are_answered_with_the_nearest(refused):
    refused(["optimiser", "did you mean 'optimizer'?"], "keys", "optimiser")
    refused(["no optimizer is called 'adam'", "adamw"], "keys", "optimizer=adam")


# schema


def test_writes_its_files_and_says_what_is_next(advsweep, tmp_path):
    done = advsweep("init", "mine")
    assert done.returncode == 0, done.stderr
    assert {path.name for path in (tmp_path / "mine").iterdir()} == {*NAMES, SCHEMA}
    assert done.stdout.splitlines()[-1] == "Next: cd mine && advsweep sweep sweep.yaml"
    for name in NAMES:
        assert (tmp_path / "mine" / name).read_text() == (INIT_FILES / name).read_text()


@pytest.mark.slow
def test_sweep_file_names_a_schema_that_it_fits(advsweep, tmp_path):
    assert advsweep("init").returncode == 0
    text = (tmp_path / "sweep.yaml").read_text()
    assert text.splitlines()[0] == f"# yaml-language-server: $schema={SCHEMA}"
    schema = (tmp_path / SCHEMA).read_text()
    (tmp_path / "estimator").mkdir()
    (tmp_path / "estimator" / "mine.yaml").write_text("name: fade\nh_star: 0.25\n")
    assert '"mine"' in advsweep("schema", "--config-dir", ".").stdout
    validator = Draft202012Validator(json.loads(schema))
    assert validator.is_valid(yaml.safe_load(text))
    # Without its comment signs, the line that offers rates to sweep over fits, too.
    rates = text.replace("# optimizer.lr", "optimizer.lr")
    (tmp_path / "rates.yaml").write_text(rates)
    plan = json.loads(advsweep("sweep", "rates.yaml", "--dry-run", "--format", "json").stdout)
    assert len(plan["runs"]) == 18
    assert validator.is_valid(read_yaml(tmp_path / "rates.yaml"))
    assert not validator.is_valid(yaml.safe_load(text.replace("steps:", "step:")))


def test_makefile_reads_the_name_of_the_sweep_from_its_file(tmp_path):
    if shutil.which("make") is None:
        pytest.skip("no make")
    shutil.copy(INIT_FILES / "Makefile", tmp_path)
    renamed = (INIT_FILES / "sweep.yaml").read_text().replace("name: first  ", "name: other  ")
    (tmp_path / "sweep.yaml").write_text(renamed)
    # docs/ci.md runs these commands.
    printed = subprocess.check_output(
        ["make", "--no-print-directory", "-n", "ci", "report"], cwd=tmp_path, text=True
    )
    assert printed.splitlines() == [
        "advsweep sweep sweep.yaml",
        "advsweep report other --assert 'pass@1[grpo] >= pass@1[base]'",
        "advsweep report other",
        "advsweep report other --format html > report.html",
    ]


@pytest.mark.parametrize("name", [NAMES[0], SCHEMA])
def test_overwrites_nothing(advsweep, tmp_path, name):
    (tmp_path / name).write_text("mine")
    done = advsweep("init")
    assert done.returncode == 2
    assert name in done.stderr
    assert done.stderr.count("\n") == 1
    assert [path.name for path in tmp_path.iterdir()] == [name]
    assert (tmp_path / name).read_text() == "mine"


def test_follows_no_link_out_of_the_folder(advsweep, tmp_path):
    (tmp_path / "mine").mkdir()
    (tmp_path / "mine" / "README.md").symlink_to(tmp_path / "elsewhere")
    assert advsweep("init", "mine").returncode == 2
    assert not (tmp_path / "elsewhere").exists()
    assert len(list((tmp_path / "mine").iterdir())) == 1


# Lists that compose each member.
LONG = {"plugins", "experiments", "methods", "tasks"}


@pytest.mark.slow
def test_every_list_is_named_and_what_it_has_is_found(listed):
    lists = {row["list"]: row["used as"] for row in listed("list")}
    assert lists["estimators"] == "estimator=NAME"
    assert lists["resources"] == "resources=NAME"
    assert lists["verifiers"] == "task.verifier=NAME"
    every = {of: [row["name"] for row in listed("list", of)] for of in {*lists} - LONG}
    assert all(every.values())
    with config_groups() as groups:
        for names in every.values():
            assert find_component(groups, [names[-1]])[1] == names[-1]


@pytest.mark.parametrize(
    ("name", "told"),
    [
        ("numeric", "task.verifier.tolerance"),
        ("task.reward=cosine", "task.reward.weight"),
        ("forest", "differences to the baseline"),
        ("verl", "folders of runs of verl"),
        ("pass@8", "name         pass@8"),
    ],
)
def test_what_is_no_config_group_is_described(name, told, in_process):
    code, out, err = in_process("describe", name)
    assert code == 0, err
    assert told in out
