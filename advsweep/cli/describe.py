"""`advsweep describe`: an estimator, a task, a preset or another component in full."""

from __future__ import annotations

import inspect
from collections import Counter
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from advsweep.cli import options
from advsweep.cli.catalogue import LISTS, group_rows, print_records
from advsweep.cli.completion import complete_component
from advsweep.cli.options import ListFormat
from advsweep.cli.output import (
    echo,
    echo_line,
    print_columns,
    print_json,
    print_listing,
    warn,
)
from advsweep.errors import ConfigError, UnknownNameError, counted, nearest

if TYPE_CHECKING:
    from advsweep.config.groups import ConfigGroups
    from advsweep.estimators import Estimator
    from advsweep.tasks.base import Problem

_FIRST = ("estimator", "task", "method", "experiment")
"""Groups in which a bare name is looked up first."""

_UNUSED = {
    "rewards": "an estimator",
    "inputs": "estimators",
    "output": "estimators",
    "fields": "an estimator or a task",
}


def describe(
    names: Annotated[
        list[str],
        typer.Argument(
            metavar="NAME...",
            help="An estimator, a task, a method, an experiment or another component, as `advsweep "
            "list` prints them; GROUP=NAME where several have the name. Of several estimators the "
            "masses; their options follow colons: fade,power_alpha:alpha=3.",
            autocompletion=complete_component,
        ),
    ],
    fields: options.Assignments = None,
    rewards: str | None = None,
    inputs: list[str] | None = None,
    group_size: int = 8,
    output: Path | None = None,
    examples: int = 2,
    config_dirs: options.ConfigDir = None,
    how: options.Listing = ListFormat.TABLE,
) -> None:
    """Of an estimator: formula, source, options, departures, the advantages of degenerate groups.

    With --rewards prints the advantages, the masses of each group and what the estimator logs. The
    masses m_S and m_F are the weights per rollout of successes and failures, computed by exact
    enumeration of all groups: --output draws them over the solve rate, --format csv prints them.

    Of a task: splits, levels, floors (how often guessing is right), some problems, and what would
    prevent a training. Of a method: the estimator, objective and rollout policy that it sets. Of
    everything else its config keys.

    Options:
        --rewards ROWS: Print an estimator's advantages of these groups: 1,0,0,1;0,0,0,1,
            where - is a missing or unscorable rollout.
        --input NAME=ROWS (inputs): Give an estimator another input: lengths=3,5,2,2, or one
            number for all rollouts, token_entropy=0.3; may be repeated.
        --group-size G >= 1: Rollouts per prompt of masses.
        --output, -o FILE: Draw masses into this .png, .svg or .pdf file.
        --examples N >= 0: Print this many problems of each split of a task.

    Examples:
        advsweep describe fade
        advsweep describe asym_grpo --set delta=0.5 --rewards '1,0,0,1;0,0,0,1'
        advsweep describe dr_grpo,power_alpha:alpha=3 --output masses.svg
        advsweep describe countdown
    """
    from advsweep.sweep.registry import config_groups

    with config_groups(config_dirs or ()) as groups:
        group, name = _find(groups, names)
        if group == "estimator":
            _describe_estimators(
                [name, *names[1:]], fields or [], rewards, inputs or [], group_size, output, how
            )
            others = [f"{g}={name}" for g in _FIRST[1:] if name in groups.members(g)]
            if others and how is ListFormat.TABLE and not rewards and output is None:
                echo_line(f"See also: advsweep describe {', '.join(others)}", err=True)
            return
        given = {"rewards": rewards, "inputs": inputs, "output": output}
        if group != "task":
            given["fields"] = fields
        for option, value in given.items():
            if value:
                shown = {"inputs": "input", "fields": "set"}.get(option, option)
                raise ConfigError(f"--{shown}: expected {_UNUSED[option]}, got {group} '{name}'")
        if group == "task":
            _describe_task(groups, name, fields or [], examples, how)
        elif group in ("method", "experiment"):
            [row] = [r for r in LISTS[f"{group}s"](groups) if r["name"] == name]
            print_records([row], how)
        else:
            _describe_component(groups, group, name, how)


def _find(groups: ConfigGroups, names: Sequence[str]) -> tuple[str, str]:
    """Return the group and the name of what is meant.

    Raises:
        UnknownNameError: nothing has the name.
        ConfigError: several names that are not estimators.
    """
    from advsweep.estimators import ESTIMATORS

    found, equals, name = names[0].partition("=")
    if equals and found.isidentifier():
        if found not in groups.names:
            hint = nearest(found, groups.names)
            raise UnknownNameError(f"{names[0]}: no group is called '{found}'; {hint}")
        if found != "estimator":
            groups.member(found, name)  # raises for an unknown name
    else:
        name = names[0]
        first = name.partition(",")[0].partition(":")[0]
        estimators = [*ESTIMATORS.names(), *ESTIMATORS.aliases(), *ESTIMATORS.unavailable()]
        order = dict.fromkeys([*_FIRST, *sorted(groups.names)])
        members = {g: [*groups.members(g), *_aliases(groups, g)] for g in order}
        members["estimator"] = estimators
        found = next((g for g, known in members.items() if first in known), "")
        if not found:
            every = {name for known in members.values() for name in known}
            raise UnknownNameError(f"nothing is called '{first}'; {nearest(first, every)}")
    if found != "estimator" and len(names) > 1:
        raise ConfigError(f"expected one name, or several estimators, got {' '.join(names)}")
    return found, name


def _aliases(groups: ConfigGroups, group: str) -> Iterable[str]:
    return groups.registries[group].aliases() if group in groups.registries else ()


def _describe_estimators(
    names: Sequence[str],
    fields: Sequence[str],
    rewards: str | None,
    inputs: Sequence[str],
    group_size: int,
    output: Path | None,
    how: ListFormat,
) -> None:
    from advsweep.cli import estimators as own

    given = own.parse_inputs(inputs)
    built = own.build_named(names, fields)
    if rewards is not None:
        if len(built) > 1:
            raise ConfigError(f"--rewards: expected one estimator, got {', '.join(built)}")
        [estimator] = built.values()
        applied = own.apply(estimator, rewards, given)
        if how is ListFormat.JSON:
            print_json({"estimator": estimator.plain(), **applied.record()})
        elif how is ListFormat.CSV:
            print_listing(list(applied.rows()), how)
        else:
            own.print_applied(applied)
    elif len(built) > 1 or output is not None or how is ListFormat.CSV:
        _print_masses(built, own.single_numbers(given), group_size, output, how)
    else:
        if given:
            raise ConfigError("--input: expected --rewards or --output beside it")
        [estimator] = built.values()
        record = own.describe_estimator(estimator)
        if how is ListFormat.JSON:
            print_json(record)
        else:
            own.print_estimator(record)


def _print_masses(
    estimators: dict[str, Estimator],
    given: dict[str, float],
    group_size: int,
    output: Path | None,
    how: ListFormat,
) -> None:
    from advsweep.cli.estimators import mass_curves

    if output is None:
        records, assumed = mass_curves(estimators, group_size, given)
    else:
        from advsweep.report.figures.draw import check_path

        check_path(output)
        records, assumed = mass_curves(estimators, group_size, given)
        draw_masses(records, output, given)
    for name in assumed:
        echo(f"Assuming {name} = {given[name]:g}; set it with --input {name}=...", err=True)
    if output is not None:
        echo_line(f"Wrote {output}.", err=True)
    else:
        print_listing(records, how)


def draw_masses(records: Sequence[dict[str, Any]], output: Path, given: dict[str, float]) -> None:
    """Draw the masses of estimators over the solve rate into a file."""
    from advsweep.report.figures.advantages import draw_masses
    from advsweep.report.figures.draw import write

    curves: dict[str, list[tuple[float, Sequence[float]]]] = {}
    for record in records:
        numbers = [record[name] for name in ("m_S", "m_F", "sum", "ratio")]
        curves.setdefault(record["estimator"], []).append((record["p"], numbers))
    where = "".join(f", {name} = {value:g}" for name, value in given.items())
    title = f"Expected masses, G = {records[0]['group_size']}{where}"
    write([draw_masses(curves, title)], output)


def _describe_task(
    groups: ConfigGroups, name: str, fields: Sequence[str], examples: int, how: ListFormat
) -> None:
    from advsweep.config.compose import patch
    from advsweep.config.overrides import parse_assignments
    from advsweep.tasks import TASKS
    from advsweep.tasks.base import Split

    values = {f"task.{key}": value for key, value in parse_assignments(fields).items()}
    composition = groups.compose({"task": groups.member("task", name)})
    task = TASKS.build(patch(groups, composition, values)["task"], where="task")
    splits = {s.value.replace("_", "-"): task.problems(s) for s in Split}
    floors = {
        name: {f"pass@{k}": float(f.pass_at(k, f.rates).mean()) for k in (1, 8, 64)}
        for name, f in task.floors().items()
    }
    try:
        task.check()
        task.check_consent()
    except ConfigError as error:
        warn(str(error))
    if how is ListFormat.JSON:
        records = {s.replace("-", "_"): _split_record(p, examples) for s, p in splits.items()}
        print_json({"name": name, "settings": task.plain(), "splits": records, "floors": floors})
        return
    for split, problems in splits.items():
        levels = Counter(problem.level for problem in problems)
        counts = ", ".join(f"{levels[level]} of level {level}" for level in sorted(levels))
        many = f": {counts}" if len(levels) > 1 else ""
        echo_line(f"{split}: {counted(len(problems), 'problem')}{many}")
    for name, floor in task.floors().items():
        means = ", ".join(f"{k} {v:.4f}" for k, v in floors[name].items())
        echo_line(f"floor {name}, {floor.help}: {means}")
    for split, problems in splits.items():
        for problem in problems[:examples]:
            echo(f"\n--- {split} problem {problem.id}, level {problem.level}")
            if problem.system:
                echo_line(f"[system] {problem.system}")
            echo(problem.prompt)
            gold = _gold(problem)
            echo_line(f"--- gold: {gold.get('answer', gold)}")


def _split_record(problems: Sequence[Problem], examples: int) -> dict[str, Any]:
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
                "gold": _gold(p),
            }
            for p in problems[:examples]
        ],
    }


def _gold(problem: Problem) -> dict[str, Any]:
    """Return the reference answer; its solution only where there is nothing else."""
    answer = {k: v for k, v in problem.reference.items() if k != "solution"}
    return answer or dict(problem.reference)


def _describe_component(groups: ConfigGroups, group: str, name: str, how: ListFormat) -> None:
    rows = list(group_rows(groups, group, name))
    if how is not ListFormat.TABLE:
        print_listing(rows, how)
        return
    values = groups.member_values(group, name)
    cls = groups.registries[group].get(values.get("name", groups.member(group, name)))
    echo(f"{group}={name}\n\n{inspect.getdoc(cls) or ''}\n")
    if rows:
        columns = ("key", "type", "default", "range", "meaning")
        print_columns(columns, [[str(row[c]) for c in columns] for row in rows])
    else:
        echo("no keys")
