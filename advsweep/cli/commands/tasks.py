"""`advsweep tasks`: list tasks, and show one with some of its problems."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Any

import typer

from advsweep.cli.shared import options
from advsweep.cli.shared.help import App
from advsweep.cli.shared.options import ListFormat, RecordFormat
from advsweep.cli.shared.output import echo, echo_line, warn
from advsweep.errors import counted

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence
    from pathlib import Path

    from advsweep.tasks.base import Problem, Task
    from advsweep.tasks.floors import Floor

app = App()

TaskOptions = Annotated[
    list[str] | None,
    typer.Option(
        "-o",
        "--option",
        metavar="FIELD=VALUE",
        help="Set a field of the task: data=problems.jsonl; may be repeated.",
    ),
]


@app.callback(invoke_without_command=True)
def root(
    context: typer.Context,
    config_dirs: options.ConfigDir = None,
    output: options.Listing = ListFormat.TABLE,
) -> None:
    """List tasks, or show one with some of its problems.

    Without a command, lists every task (task=NAME) with its data, verifier and description.

    Examples:
        advsweep tasks
        advsweep tasks show countdown
    """
    if context.invoked_subcommand is not None:
        return
    from advsweep.cli.shared.output import print_listing
    from advsweep.sweep.registry import config_groups

    with config_groups(config_dirs or ()) as groups:
        nodes = {n: groups.compose({"task": n}).config["task"] for n in groups.members("task")}
    rows = [
        {
            "name": name,
            "data": node.get("data", ""),
            **_facts(node, groups.first_comment("task", name)),
        }
        for name, node in nodes.items()
    ]
    print_listing(rows, output, optional=("verifier", "data"))


@app.command("show")
def show(
    name: Annotated[str, typer.Argument(metavar="NAME", help="A task.")],
    fields: TaskOptions = None,
    examples: Annotated[
        int, typer.Option("--examples", min=0, help="Show this many problems of each split.")
    ] = 2,
    config_dirs: options.ConfigDir = None,
    output: options.Record = RecordFormat.TEXT,
) -> None:
    """Show a task with its splits, levels and some prompts.

    Prints the reference answers of the prompts, and floors: how often guessing is right. Reads the
    data and runs the checks of a training; prints what would prevent a training.

    Examples:
        advsweep tasks show countdown
        advsweep tasks show dataset -o data=problems.jsonl -o held_out=1
    """
    from advsweep.cli.shared.output import print_json
    from advsweep.errors import ConfigError
    from advsweep.tasks.base import Split

    task = _build(name, fields or [], config_dirs or [])
    record = {
        "name": name,
        "settings": task.plain(),
        "splits": {s.value: _split_record(task.problems(s), examples) for s in Split},
        "floors": {name: _floor_record(floor) for name, floor in task.floors().items()},
    }
    try:
        task.check()
        task.check_consent()
    except ConfigError as error:
        warn(str(error))
    if output is RecordFormat.JSON:
        print_json(record)
    else:
        _print(record)


def _build(name: str, texts: Sequence[str], config_dirs: Sequence[Path]) -> Task:
    from advsweep.config.compose import patch
    from advsweep.config.overrides import parse_overrides
    from advsweep.errors import ConfigError
    from advsweep.sweep.registry import config_groups
    from advsweep.tasks import TASKS

    values = {}
    for override in parse_overrides(texts):
        if override.swept or override.deleted:
            raise ConfigError(f"{override.text}: expected FIELD=VALUE with one value")
        values[f"task.{override.key}"] = override.values[0]
    with config_groups(config_dirs) as groups:
        composition = groups.compose({"task": groups.member("task", name)})
        return TASKS.build(patch(groups, composition, values)["task"], where="task")


def _split_record(problems: Sequence[Problem], examples: int) -> dict[str, Any]:
    from collections import Counter

    levels = Counter(problem.level for problem in problems)
    return {
        "problems": len(problems),
        "levels": {str(level): levels[level] for level in sorted(levels)},
        "examples": [
            {
                "id": p.id,
                "level": p.level,
                "system": p.system,
                "prompt": p.prompt,
                "gold": {k: v for k, v in p.reference.items() if k != "solution"}
                or dict(p.reference),
            }
            for p in problems[:examples]
        ],
    }


def _floor_record(floor: Floor) -> dict[str, Any]:
    means = {f"pass@{k}": float(floor.pass_at(k, floor.rates).mean()) for k in (1, 8, 64)}
    return {"help": floor.help, **means}


def _print(record: dict[str, Any]) -> None:
    for split, found in record["splits"].items():
        counts = found["levels"].items()
        levels = ", ".join(f"{count} of level {level}" for level, count in counts)
        many = f": {levels}" if len(counts) > 1 else ""
        echo_line(f"{split.replace('_', '-')}: {counted(found['problems'], 'problem')}{many}")
    for name, floor in record["floors"].items():
        means = ", ".join(f"{k} {v:.4f}" for k, v in floor.items() if k != "help")
        echo_line(f"floor {name}, {floor['help']}: {means}")
    for split, found in record["splits"].items():
        for example in found["examples"]:
            head = f"{split.replace('_', '-')} problem {example['id']}, level {example['level']}"
            echo()
            echo_line(f"--- {head}")
            if example["system"]:
                echo_line(f"[system] {example['system']}")
            echo(example["prompt"])
            gold = example["gold"]
            echo_line(f"--- gold: {gold.get('answer', gold)}")


def _facts(node: Mapping[str, Any], comment: str) -> dict[str, str]:
    """Return a task's verifier, if it does not verify answers itself, and its description."""
    import inspect

    from advsweep.errors import PluginError
    from advsweep.tasks import TASKS

    try:
        cls = TASKS.get(node["name"])
    except PluginError as error:  # It must not hide the other tasks.
        warn(str(error))
        return {"verifier": "", "description": comment}
    spec = node.get("verifier", getattr(cls, "verifier", ""))
    summary = (inspect.getdoc(cls) or "").partition("\n\n")[0]
    return {
        "verifier": str(spec["name"] if isinstance(spec, dict) else spec),
        "description": comment or " ".join(summary.split()),
    }
