"""Templates and their placeholders: what is refused, and what reaches the command."""

import re
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from advsweep.backends.command.arguments import (
    command_line,
    fill,
    hydra_text,
    variables,
)
from advsweep.backends.command.backend import Command
from advsweep.backends.command.template import (
    build_template,
    builtin_templates,
    read_template,
    template_path,
)
from advsweep.errors import ConfigError, UnknownNameError
from advsweep.estimators import ESTIMATORS

NEEDED = ["{estimator.name}", "{seed}", "{steps}"]


def template(**changes):
    return build_template({"command": ["train", *NEEDED], **changes}, "mine.yaml")


def line_of(run, *, resume=False):
    backend = run.backend
    values = backend.values(run, Path("/runs/1/output"))
    return command_line(backend.spec, {**values, "checkpoint": "/c", "step": 4}, resume=resume)


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"comand": "x"}, "no parameter 'comand'; did you mean 'command'"),
        ({"metrics": {"kinds": "csv"}}, "metrics.kinds: .*did you mean 'kind'"),
        ({"checkpoints": {"glob": "c-*"}}, "checkpoints.step: expected `glob`, and in `step`"),
        ({"stop": {"signal": "KILL"}}, "expected one of TERM, INT, HUP, USR1, USR2, got 'KILL'"),
        ({"command": ["train", "{seed}", "{steps}"]}, "expected a placeholder {estimator.name}"),
        ({"command": ["train", *NEEDED, "{sed}"]}, "'{sed}'; did you mean 'seed'"),
        ({"command": ["train", *NEEDED, "{seed:03d}"]}, "without a format"),
        ({"command": ["train", *NEEDED, "{seed"]}, "with {{ and }} for braces"),
        ({"command": []}, "expected a program"),
        ({"command": ["train", *NEEDED, {"each": "estimator"}]}, "or {each: estimator"),
        ({"parameters": {"lr": 1}}, "parameters.lr: expected a placeholder"),
        ({"fixed": {"seed": 0}}, "fixed.seed: .*a placeholder uses"),
        ({"fixed": {"task": "x"}}, "fixed.task: no such key can be stated"),
        ({"name": "x"}, "no `name`"),
        (
            {"command": ["t", *NEEDED, "{parameters.api_key}"], "parameters": {"api_key": "abc"}},
            "parameters.api_key: expected no secret, since the store, logs",
        ),
        ({"environment": {"HF_TOKEN": "abc"}}, "environment.HF_TOKEN: expected no secret"),
        ({"command": ["t", *NEEDED, "--api-key=abc"]}, r"command: --api-key=\*\*\*: expected no"),
    ],
)
def test_what_does_not_fit_is_refused(changes, words):
    with pytest.raises(ConfigError) as raised:
        template(**changes)
    assert re.search(words, str(raised.value)), str(raised.value)
    assert "abc" not in str(raised.value)
    assert str(raised.value).startswith("mine.yaml: ")


def test_settings_that_are_named_like_secrets_are_taken():
    spec = template(
        command=["t", *NEEDED, "{parameters.prompt_key}"],
        parameters={"prompt_key": "question"},
        environment={"HF_TOKEN": None},
    )
    assert spec.parameters == {"prompt_key": "question"}


def test_a_secret_as_a_value_is_refused_without_being_shown():
    content = {"command": ["t", *NEEDED, "{parameters.api_key}"], "parameters": {"api_key": None}}
    with pytest.raises(ConfigError, match=r"parameters.api_key: expected no secret") as raised:
        Command(content=content, parameters={"api_key": "abc"})
    assert "abc" not in str(raised.value)


def test_a_log_outside_the_folder_of_the_run_is_refused(command_run):
    for file in ("/tmp/shared.jsonl", "../other.jsonl", "{directory}/../x.jsonl"):
        with pytest.raises(ConfigError, match=r"expected a path below {directory}"):
            command_run({"metrics": {"file": file}})


def test_kinds_and_names_of_logs_are_checked_before_anything_starts(command_run):
    with pytest.raises(UnknownNameError, match="jsonl"):
        command_run({"metrics": {"kind": "jsnol"}})
    with pytest.raises(UnknownNameError, match="trl"):
        command_run({"metrics": {"names": "tlr"}})


def test_values_fill_placeholders(command_run):
    run = command_run({"command": ["x", "{{a}}", "--n={steps}", *NEEDED], "parameters": None})
    assert line_of(run) == ["x", "{a}", "--n=6", "grpo", "1", "6"]
    assert line_of(run, resume=True)[-2:] == ["--resume", "/c"]


def test_each_passes_all_fields_of_a_component(command_run):
    line = ["x", "{seed}", "{steps}", {"each": "estimator", "as": ["--set", "{key}={value}"]}]
    changes = {"command": line, "parameters": None}
    run = command_run(changes, {"estimator": {"name": "asym_grpo", "delta": 0.25}})
    assert "delta=0.25" in line_of(run)
    inner = command_run(changes, {"estimator": {"name": "grpo_n", "base": {"name": "rloo"}}})
    assert "base.name=rloo" in line_of(inner)


def test_a_placeholder_of_a_parameter_that_the_estimator_lacks(command_run):
    line = ["x", *NEEDED, "{estimator.delta}"]
    changes = {"command": line, "parameters": None}
    command_run(changes, {"estimator": {"name": "asym_grpo"}})
    with pytest.raises(ConfigError, match=r"'grpo' has no parameter 'delta'.*each: estimator"):
        command_run(changes)


def test_only_what_reaches_the_command_is_in_the_config_and_the_identity(command_run):
    plain = command_run()
    config = plain.plain()
    assert set(config) == {"estimator", "backend", "steps", "seed"}
    assert config["estimator"] == {"name": "grpo"}
    assert config["backend"]["parameters"] == {"mode": "", "delay": 0.02}
    others = {"optimizer": {"name": "adamw", "lr": 1.0}, "group_size": 4, "task": "gsm8k"}
    assert command_run(config=others).identity == plain.identity
    assert command_run(config={"steps": 7}).identity != plain.identity
    assert command_run(mode="loud").identity != plain.identity
    assert command_run({"workdir": "x"}).identity != plain.identity
    # What is stored builds the same run again.
    from advsweep.backends.build import build_run

    again = build_run(config)
    assert again.identity == plain.identity
    assert again.plain() == config


def test_what_a_command_does_by_itself_is_stated(command_run):
    changes = {
        "command": ["x", "{seed}"],
        "parameters": None,
        "fixed": {"estimator": "rloo", "steps": 50, "group_size": 16},
    }
    run = command_run(changes)
    assert (run.estimator.name, run.steps, run.group_size) == ("rloo", 50, 16)
    assert run.plain()["group_size"] == 16
    with pytest.raises(ConfigError, match=r"estimator: .*the template fixes at 'rloo'"):
        run.backend.check_given(["estimator"])


@pytest.mark.parametrize(
    ("key", "reaches"),
    [
        *[("estimator", True), ("seed", True), ("steps", True), ("backend.template", True)],
        *[("backend.parameters.mode", True), ("executor.jobs", True), ("resources.gpus", True)],
        *[("estimator.delta", False), ("task", False), ("group_size", False)],
        *[("optimizer.lr", False), ("method", False), ("backend.checkpoint_every", False)],
        *[("evaluation.k", False), ("generation.temperature", False)],
    ],
)
def test_keys_that_reach_nothing_are_refused(command_run, key, reaches):
    backend = command_run().backend
    if reaches:
        backend.check_given([key])
    else:
        with pytest.raises(ConfigError, match=f"^{key}: expected a key that reaches the command"):
            backend.check_given([key])


def test_unknown_parameters_are_refused(command_run):
    with pytest.raises(UnknownNameError, match=r"parameters.mod: .*did you mean 'mode'"):
        command_run(mod="x")


@pytest.mark.slow
@given(st.text(st.characters(blacklist_categories=["Cs"], blacklist_characters="\0")))
def test_a_value_is_one_argument_whatever_it_holds(value):
    values = {"parameters": {"p": value}}
    assert fill("--x={parameters.p}", values, "command") == f"--x={value}"


@given(st.text(st.characters(blacklist_categories=["Cs", "Cc"], max_codepoint=0x2FF)))
def test_hydra_reads_a_text_as_it_was(value):
    from hydra.core.override_parser.overrides_parser import OverridesParser
    from omegaconf import OmegaConf

    [parsed] = OverridesParser.create().parse_overrides([f"key={hydra_text(value)}"])
    read = parsed.value()
    assert OmegaConf.create({"key": getattr(read, "text", read)}).key == value


def test_values_of_overrides_of_hydra(command_run):
    line = ["x", "a={parameters.a}", "b={directory}/~c", "{parameters.d}", "e=[~x]", *NEEDED]
    parameters = {"a": "~/my data", "d": "~f"}
    changes = {"command": line, "parameters": parameters, "quoting": "hydra"}
    found = line_of(command_run({**changes, "checkpoints": None}))
    assert found[1:5] == ["a='~/my data'", "b='/runs/1/output/~c'", "~f", "e=[~x]"]
    number = command_run({**changes, "checkpoints": None}, None, a=0.5)
    assert line_of(number)[1] == "a=0.5"


def test_a_text_is_split_before_values_are_filled_in(command_run):
    line = "x --name 'a b' {parameters.p} {estimator.name} {seed} {steps}"
    run = command_run({"command": line, "parameters": {"p": "c 'd"}, "checkpoints": None})
    assert line_of(run) == ["x", "--name", "a b", "c 'd", "grpo", "1", "6"]


def test_variables(command_run, monkeypatch):
    monkeypatch.setenv("ADVSWEEP_STORE", "postgresql://user:secret@host/db")
    monkeypatch.setenv("UNWANTED", "1")
    run = command_run({"environment": {"A": "{seed}", "UNWANTED": None}})
    backend = run.backend
    found = variables(backend.spec, backend.values(run, Path("/r")))
    assert found["A"] == "1"
    assert "UNWANTED" not in found
    assert not any("secret" in value for value in found.values())


@pytest.mark.parametrize("name", builtin_templates())
def test_our_own_templates_fit_every_estimator(command_node, name):
    """Their command lines hold the estimator with all of its fields."""
    from advsweep.backends.build import build_run

    path = template_path(name)
    content = read_template(path)
    node = {**command_node(), "template": str(path), "content": content}
    for estimator in ESTIMATORS:
        numbers = {"seed": 3, "steps": 9, "group_size": 8, "prompts_per_step": 4}
        config = {"backend": {**node, "parameters": {}}, "estimator": {"name": estimator}}
        run = build_run({**config, **numbers})
        assert any(estimator in argument for argument in line_of(run))
        assert run.group_size == 8


def test_templates_are_found_by_name_or_path(tmp_path):
    assert builtin_templates() == ["torchrun", "trl_script", "verl"]
    file = tmp_path / "mine.yaml"
    file.write_text("command: x {estimator.name} {seed} {steps}\n")
    assert template_path(str(file)) == file.resolve()
    with pytest.raises(ConfigError, match="a file, or one of torchrun, trl_script, verl"):
        template_path("vrl")
    (tmp_path / "list.yaml").write_text("- a\n")
    with pytest.raises(ConfigError, match="expected a mapping"):
        read_template(tmp_path / "list.yaml")
