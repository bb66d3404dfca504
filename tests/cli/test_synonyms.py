"""What users of other tools type: each entry of `synonyms.toml`, and command lines with answers."""

from __future__ import annotations

import re
import shlex
from functools import cache
from typing import Any

import pytest
import typer

from advsweep import synonyms
from advsweep.cli.app import app
from advsweep.cli.catalogue import OF_SWEEPS, PARTS, group_rows, rows_of
from advsweep.cli.commands import BY_NAME
from advsweep.config.sweep_file import _KEYS as OF_SWEEP_FILES
from advsweep.logs import READERS
from advsweep.report.data.metrics import find_metric
from advsweep.sweep.registry import config_groups

ROOT: Any = typer.main.get_command(app)
CONTEXT = typer.Context(ROOT, info_name="advsweep")
BUILT: dict[str, Any] = {name: ROOT.get_command(CONTEXT, name) for name in BY_NAME}
OPTIONS = {option for command in BUILT.values() for p in command.params for option in p.opts}

SECTIONS = synonyms.sections()
ENTRIES = [
    pytest.param(section, say, id=f"{section}: {typed}")
    for section, entries in SECTIONS.items()
    for typed, say in entries.items()
]
SHELL = re.compile(r" (?:2?> \S+|&)$")
PLACEHOLDER = re.compile(r"[A-Z][A-Z/:]*(?:\.[a-z]+)?")
"""A word that stands for what the user chooses: PATH, FILE.yaml, hub:OWNER/NAME."""


@cache
def known_keys() -> dict[str, set[str]]:
    """The types of each key in words; a group has that of a name."""
    types: dict[str, set[str]] = {}
    with config_groups() as groups:
        from advsweep.backends.base import RunParameters

        rows = rows_of(RunParameters, {})
        for group in [*groups.registries, *PARTS, *OF_SWEEPS]:
            rows += group_rows(groups, group)
    for row in rows:
        types.setdefault(row["key"], set()).add(row["type"])
    return types


@cache
def members() -> dict[str, set[str]]:
    """The names of each group."""
    with config_groups() as groups:
        of_groups = {
            group: {*groups.members(group), *getattr(groups.registries.get(group), "aliases", ())}
            for group in groups.names
        }
    return of_groups | {key: set(registry.names()) for key, registry in PARTS.items()}


def check_assignment(word: str) -> None:
    """KEY, KEY=VALUE, +experiment=NAME: the key exists, and takes the value."""
    key, equals, value = word.lstrip("+").partition("=")
    names = members().get(key)
    known = {*known_keys(), *members(), *OF_SWEEPS, *(f"sweep.{k}" for k in OF_SWEEP_FILES)}
    assert key in known, f"{key} is no key"
    if not equals or PLACEHOLDER.fullmatch(value.removeprefix("hub:").strip("[]")):
        return
    if names is not None and not value.startswith("{"):
        assert set(value.split(",")) <= names, f"{key} has no {value}"
    kinds = known_keys().get(key, set())
    if kinds and all(kind.startswith("one of ") for kind in kinds):
        listed = {v for kind in kinds for v in re.split(", | or ", kind.removeprefix("one of "))}
        assert value in listed, f"{key} has no {value}"


def check_command(text: str) -> None:
    """`report SWEEP --columns pass@8`: it can be parsed."""
    words = shlex.split(SHELL.sub("", text))
    if words[0].startswith("-") and len(words) == 1:
        assert words[0] in ("--install-completion", "--version")
        return
    words = [word for word in words if word != "--debug"]
    command = BUILT[words[0]]
    params = command.make_context(words[0], words[1:], parent=CONTEXT).params
    for word in params.get("overrides") or ():
        if "=" in word and not word.startswith("KEY="):
            check_assignment(word)


def check_option(text: str) -> None:
    option, *_ = text.split()
    assert option in OPTIONS, f"no command has {option}"


def check_column(name: str) -> None:
    metric = name.removesuffix("@end")
    assert find_metric(metric.partition("[")[0]) is not None, f"there is no metric {metric}"


def check(text: str) -> None:
    """Whatever stands in backticks: a command, an option, keys with values, or a column."""
    if text.startswith("advsweep "):
        check_command(text.removeprefix("advsweep "))
    elif text.startswith("-"):
        check_option(text)
    elif re.match(r"pass@\d+$|pass@1\[", text):
        check_column(text)
    elif text != "import advsweep":
        for word in shlex.split(text) if "{" not in text else [text]:
            check_assignment(word)


@pytest.mark.parametrize(("section", "say"), ENTRIES)
def test_what_an_entry_says_exists(section, say):
    said = re.sub(r"\{([A-Za-z][^{}:]*|hub:OWNER/NAME)\}", r"\1", say)
    if synonyms.is_sentence(said):
        quoted = re.findall(r"`([^`]+)`", said)
        assert quoted
        for text in quoted:
            check(text)
        return
    kind, _, of = section.partition(".")
    if kind == synonyms.COMMANDS:
        check_command(said)
    elif kind == synonyms.OPTIONS:
        option, *_ = said.split()
        known = OPTIONS if not of else {o for p in BUILT[of].params for o in p.opts}
        assert option in known, f"{of or 'no command'} has {option}"
    elif kind == synonyms.COLUMNS:
        check_column(said)
    elif of == "list":
        check_command(said)
    elif of == "importer":
        assert said in READERS
    else:
        check(said)


def test_entries_answer_words_that_do_not_exist():
    """An entry of a name of ours would never be read, or hide it."""
    assert not {*SECTIONS[synonyms.COMMANDS]} & {*BY_NAME}
    numbers = {"group_size", "prompts_per_step", "steps", "seed"}
    assert not {*SECTIONS[synonyms.KEYS]} & {*members(), *numbers}
    for group, names in members().items():
        exact = {t for t in SECTIONS.get(f"{synonyms.VALUES}.{group}", {}) if "*" not in t}
        assert not exact & {*names}, group
    for name, command in BUILT.items():
        long = (o for p in command.params for o in p.opts if o.startswith("--"))
        own = set(map(synonyms.fold, long))
        assert not own & {*SECTIONS.get(f"{synonyms.OPTIONS}.{name}", {})}, name


def test_spellings_make_no_difference():
    for typed in ("Learning-Rate", "--learning_rate", "actor_rollout_ref.actor.optim.lr"):
        assert synonyms.find(synonyms.KEYS, typed) == "optimizer.lr"
    assert synonyms.find(synonyms.KEYS, "trainer.of_nobody") is not None  # by its beginning
    assert synonyms.find(synonyms.KEYS, "of_nobody") is None
    given = synonyms.find(f"{synonyms.VALUES}.model", "Some/Model-1B")
    assert given == "backend=trl model=hf model.path=Some/Model-1B"
    assert synonyms.find(synonyms.COMMANDS, "compare", "a b") == "report a b"
    assert synonyms.find(synonyms.COMMANDS, "compare") == "report SWEEP..."


def test_a_letter_that_is_missing_makes_no_difference():
    words = [word for word in SECTIONS[synonyms.KEYS] if "*" not in word and len(word) > 8]
    mistyped = {word[:5] + word[6:]: word for word in words}
    assert all(synonyms.most_alike(synonyms.KEYS, each) is not None for each in mistyped)
    assert synonyms.most_alike(synonyms.KEYS, "lerning_rate") == "learning_rate"
    assert synonyms.most_alike(synonyms.KEYS, "zzz") is None


def test_a_metric_of_ours_that_runs_lack_is_no_other():
    assert synonyms.find(synonyms.COLUMNS, "train/global/lr") == "optim/lr@end"
    assert synonyms.find(synonyms.COLUMNS, "optim/lr") is None


def test_correct_commands_do_not_read_the_file(in_process):
    synonyms._read.cache_clear()
    for command in (["--help"], ["ls"], ["status", "two"], ["help", "run"]):
        code, _, _ = in_process(*command)
        assert code == 0
    assert synonyms._read.cache_info().currsize == 0
    in_process("lst")
    assert synonyms._read.cache_info().currsize == 1


# Command lines, with what their answers name. Nothing is trained, and the store is unchanged.

REFUSED = {
    # keys of TRL, verl, OpenRLHF, Hydra, W&B and others
    "run lora_r=8": "model.lora_rank",
    "run num_train_epochs=3": "steps=200",
    "run gradient_accumulation_steps=8": "backend.device_batch",
    "run vllm_gpu_memory_utilization=.5": "generation.gpu_memory",
    "run algorithm.kl_ctrl.kl_coef=0.01": "objective.kl_coef",
    "run actor_rollout_ref.actor.clip_ratio_high=0.28": "objective.clip_high",
    "run actor_rollout_ref.rollout.gpu_memory_utilization=.4": "generation.gpu_memory",
    "run actor_rollout_ref.model.path=some/model": "model.path=PATH",
    "run trainer.test_freq=5": "evaluation.every",
    "run data.max_response_length=512": "generation.max_tokens",
    "run data.nonsense=1": "advsweep keys task=dataset",
    "run --advantage_estimator rloo": "estimator=rloo",
    "run --temperature 0.5": "generation.temperature or evaluation.temperature",
    "run --n_samples_per_prompt 4": "group_size=4",
    "run --pretrain some/model": "model.path=PATH",
    "run --wandb_project mine": "tracking.project",
    "run hydra.job.chdir=true": "advsweep sweep KEY=A,B",
    "sweep hydra/sweeper=ax estimator=grpo": "advsweep sweep",
    "run --config-path conf2 --info": "--config-dir",
    "run Learning-Rate=1e-5": "optimizer.lr",
    "run accelerator=gpu": "resources.gpus=1",
    "run max_epochs=4": "backend.inner_epochs",
    "sweep n_trials=20": "advsweep sweep optimizer.lr=1e-4,3e-4",
    "sweep --n-trials 20": "examples/search_with_optuna.py",
    "sweep seeds=5": "seed=0,1,2",
    "run optimizer.weight-decay=1": "weight_decay",
    # mistyped
    "run +lerning_rate=1e-3": "optimizer.lr",
    "run temperture=0.7": "generation.temperature or evaluation.temperature",
    "run alpha_max=1": "estimator.alpha_max",
    "run ++zzz=1": "`advsweep keys` lists",
    "run grop": "estimator=grpo",
    "sweep twoo": "`advsweep sweep two`",
    "sweep demo.yaml": "+experiment=demo",
    "dashbord": "advsweep serve",
    "report two --columns zzz": "advsweep list metrics",
    "plot two --metric zzz": "advsweep list metrics",
    "keys zzz": "`advsweep keys` lists",
    "describe zzz": "`advsweep list`",
    "run wandb=offline": "tracking=wandb",
    # values
    "run estimator=Dr.GRPO": "estimator=dr_grpo",
    "run estimator=reinforce++": "reinforce_pp",
    "run estimator=gae": "estimator=rloo",
    "run objective=ppo": "objective=clipped",
    "run task=./mine.jsonl": "task=dataset task.data=./mine.jsonl",
    "run model=meta/Model-8B": "backend=trl model=hf model.path=meta/Model-8B",
    "run optimizer=adam": "optimizer=adamw",
    "run tracking=tb": "tracking=tensorboard",
    "run executor=submitit_slurm": "executor=slurm",
    "run backend=vllm": "backend=trl generation=vllm",
    "run objective.aggregation=token-mean": "'token_mean'",
    "run optimizer.schedule=linear": "optimizer.schedule=cosine",
    "sweep seed=2..6": "seed=range(2,7)",
    "sweep seed=2:6": "seed=range(2,6)",
    "run steps=2e1": "write 20",
    "run steps=1.5k": "write 1500",
    "run evaluation.k=8": "write [8]",
    "run evaluation.n_samples=8": "evaluation.n?",
    "sweep estimator=all": "advsweep list estimators",
    # words without a sign
    "run estimator rloo": "write estimator=rloo",
    "run group_size: 4": "write group_size=4",
    "run group_size:4": "write group_size=4",
    "run steps = 7": "write steps=7",
    "run steps= 7": "write steps=7",
    "run rloo": "estimator=rloo",
    "run lr 1e-5": "write optimizer.lr=1e-5",
    "sweep demo": "advsweep sweep +experiment=demo",
    "run qwertz": "advsweep keys",
    # commands
    "kill two": "advsweep stop two",
    "top": "advsweep status --watch",
    "ps": "advsweep status",
    "mv two three": "advsweep rename two three",
    "train estimator=grpo": "advsweep run estimator=grpo",
    "optuna-dashboard": "advsweep serve SWEEP",
    "diff 1 2": "advsweep show",
    "best two": "advsweep report two --sort pass@1",
    "studies": "advsweep ls --sweeps",
    "agent two": "advsweep worker two",
    "estimator=rloo": "advsweep run estimator=rloo",
    "mine.yaml": "advsweep sweep mine.yaml",
    "lr": "advsweep run optimizer.lr=VALUE",
    "lits": "'list'",
    # options
    "ls --sort-by pass@1": "advsweep report SWEEP --sort pass@1",
    "run --name mine": "advsweep sweep KEY=VALUE --name NAME",
    "report two --task gsm8k": "--columns pass@1[TASK]",
    "sweep --config mine.yaml": "advsweep sweep mine.yaml",
    "show last -o a.txt": "advsweep report SWEEP > FILE",
    "rm two -rf": "advsweep rm SWEEP",
    "--verbose": "--debug",
    # values of options, columns, names
    "report two --format md": "--format markdown",
    "ls --status finished": "--status done",
    "plot two --figure loss": "--figure curves --metric loss/policy",
    "plot two --figure pareto": "--figure frontier",
    "report two --columns accuracy": "pass@1",
    "report two --columns kl": "loss/kl@end",
    "report two --columns val-core/gsm8k/acc": "pass@1",
    "report two --columns eval/reward": "reward/mean@end",
    "plot two --figure curves --metric reward": "did you mean reward/mean?",
    "report two --at 5": "write steps=5",
    "report two --at last": "without `--at`",
    "report estimator=grpo": "--where 'estimator=grpo'",
    "export two": "--to csv",
    "report two --sort -pass@1": "write pass@1",
    "report two --where pass@1>=0.5": "--columns pass@1 --sort pass@1",
    "report two --where estimator==grpo": "write estimator=grpo",
    "report two --rows learning_rate": "optimizer.lr",
    "report two --baseline GRPO": "'grpo'",
    "report two too": "'two'",
    "list benchmarks": "list tasks",
    "list sweeps": "advsweep ls --sweeps",
    "import tfevents logs": "tensorboard",
    "describe estimators": "advsweep list estimators",
    "describe gae": "estimator=rloo",
    "describe acr_end": "collapse/acr@end",
    "describe sweep": "advsweep help sweep",
    "keys num_return_sequences": "group_size",
    "show": "advsweep show last",
    "show 1 2": "advsweep show last",
    "status 1": "advsweep show 1",
}

WORKS = {
    "help": "Train:",
    "help report": "Usage: advsweep report",
    "version": "advsweep ",
    "-V": "advsweep ",
    "report two two": "fade",
    "report two --metric pass@8": "p@8",
    "report two --metric=pass@8": "p@8",
    "report two --group-by estimator": "fade",
    "report two --estimator fade": "fade",
    "report two --md": "| :--",
    "ls -n 1": "identity",
    "ls --json": '"identity"',
    "ls --db advsweep.db": "identity",
    "show last --all": "environment",
    "run -m estimator=grpo,fade steps=2 --dry-run": "fade seed=0",
    "run ++optimizer.lr=1e-5 --dryrun": "optimizer.lr=1e-05",
    "sweep two": "",
}


@pytest.mark.parametrize("line", REFUSED)
def test_an_answer_names_what_to_type(line, in_process):
    code, out, err = in_process(*shlex.split(line))
    assert (code, out) == (2, "")
    # What is done in place of what was typed is said before.
    *_, answer = [text for text in err.splitlines() if "is taken as" not in text]
    assert answer.startswith("advsweep: ")
    assert REFUSED[line] in answer


@pytest.mark.parametrize("line", WORKS)
def test_a_clear_wish_works(line, in_process):
    code, out, err = in_process(*shlex.split(line))
    assert code == 0, err
    assert WORKS[line] in out
