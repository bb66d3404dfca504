"""`advsweep describe`: an estimator, a task or another component, and words of tables."""

from __future__ import annotations

import inspect
import re
import textwrap
from collections import Counter
from collections.abc import Collection, Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from advsweep.backends.base import RunParameters
from advsweep.brackets import split_outside_brackets
from advsweep.cli import options
from advsweep.cli.catalogue import (
    OTHERS,
    PARTS,
    PRESETS,
    group_rows,
    member_component,
    member_record,
    print_members,
    rows_of,
)
from advsweep.cli.commands import BY_NAME
from advsweep.cli.completion import complete_component
from advsweep.cli.deferred_torch import defer_torch
from advsweep.cli.output import (
    echo,
    echo_line,
    print_code,
    print_json,
    print_listing,
    print_pairs,
    warn,
)
from advsweep.cli.own_data import gold_text
from advsweep.config.compose import patch
from advsweep.config.groups import ConfigGroups
from advsweep.config.overrides import parse_assignments
from advsweep.errors import ConfigError, UnknownNameError, counted, nearest
from advsweep.estimators import ESTIMATORS
from advsweep.named_code import Word, parse_word, split_word
from advsweep.objectives import OBJECTIVES
from advsweep.registry import Registry
from advsweep.report.words import find_word
from advsweep.sweep.registry import config_groups
from advsweep.synonyms import COLUMNS, COMMANDS, KEYS, VALUES, hint
from advsweep.tasks import TASKS
from advsweep.tasks.base import Problem, Split

if TYPE_CHECKING:
    from advsweep.cli.estimators import Rows
    from advsweep.estimators import Estimator

# What `find_component` calls a word of tables and figures, and a config key.
_WORD = "word"
_KEY = "key"

# Groups in which a bare name is looked up first.
_FIRST = ("estimator", "task", *PRESETS)

_GROUP_SIZE = 8

_EXAMPLES = 2  # problems of each split of a task

EXAMPLES = (
    "advsweep describe fade",
    "advsweep describe asym_grpo --set delta=0.5 --rewards '1,0,0,1;0,0,0,1'",
    "advsweep describe dr_grpo,power_alpha:alpha=3 --output masses.svg",
    "advsweep describe idea.py",
    "advsweep describe clipped,clipped:dual_clip=3 --output weights.svg",
    "advsweep describe countdown",
    "advsweep describe 'p@32 - guess'",
)


def describe(
    names: Annotated[
        list[str],
        typer.Argument(
            show_default=False,
            metavar="NAME...",
            autocompletion=complete_component,
            help="A component, as `advsweep list` prints them, or an estimator's file; GROUP=NAME "
            "where several have the name. Options follow colons: fade,power_alpha:alpha=3. Or a "
            "word of a table or a figure: a heading, a column, a key.",
        ),
    ],
    fields: Annotated[
        list[str] | None,
        typer.Option(
            "--set",
            metavar="KEY=VALUE",
            help="Set a field: delta=0.5 or base.name=dr_grpo; may be repeated.",
        ),
    ] = None,
    rewards: Annotated[
        str | None,
        typer.Option(
            "--rewards",
            metavar="ROWS",
            help="Print the advantages of these groups; - is a missing rollout.",
        ),
    ] = None,
    inputs: Annotated[
        list[str] | None,
        typer.Option(
            "--input",
            metavar="NAME=ROWS",
            help="Give an estimator another input: lengths=3,5,2,2.",
        ),
    ] = None,
    output: Annotated[
        Path | None,
        typer.Option(
            "--output",
            "-o",
            metavar="FILE",
            help="Draw masses and turns, or weights, into this .png, .svg or .pdf file.",
        ),
    ] = None,
    config_dirs: options.ConfigDirs = None,
    output_format: options.ListFormat = "table",
) -> None:
    """Describe a component, or a word of a table.

    Of estimators: formula, source, options, departures, the advantages of degenerate groups, of the
    turns of four episodes where these differ, and the masses over the solve rate. Of objectives:
    source, options, departures, the weight of a token over its importance ratio. Of a task: splits,
    levels, floors and some problems.
    """
    defer_torch()
    settings = fields or []
    with config_groups(config_dirs or ()) as groups:
        group, name = find_component(groups, names)
        if group == _WORD:
            _describe_word(name, output_format)
            return
        if group == "estimator":
            _describe_estimators(
                [name, *names[1:]],
                settings,
                rewards=rewards,
                inputs=inputs or [],
                output=output,
                output_format=output_format,
            )
            return
        has_batch = bool(rewards or inputs)
        if group == "objective" and not has_batch:
            _describe_objectives(
                groups, [name, *names[1:]], settings, output=output, output_format=output_format
            )
            return
        refused = [has_batch, output is not None, bool(settings) and group != "task"]
        if len(names) > 1 or any(refused):
            raise ConfigError(
                f"expected one name, and --set, --rewards, --input and --output with estimators "
                f"(--set and --output with objectives, --set with tasks), got {group} '{name}'"
            )
        if group == "task":
            _describe_task(groups, name, settings, output_format)
        else:
            _describe_other(groups, group, name, output_format)


def _describe_other(
    groups: ConfigGroups, group: str, name: str, output_format: options.ListFormat
) -> None:
    """Describe what has no options here: a preset, a key, or another component."""
    if group in PRESETS:
        _describe_preset(groups, group, name, output_format)
    elif group == _KEY:
        print_listing(_key_rows(groups, name), output_format)
    elif group in OTHERS:
        print_listing([row for row in OTHERS[group]() if row["name"] == name], output_format)
    else:
        _describe_options(groups, group, name, output_format)


def find_component(groups: ConfigGroups, names: Sequence[str]) -> tuple[str, str]:
    """Return the group and the name of what is meant.

    Raises:
        UnknownNameError: nothing has the name.
    """
    named = _find_in_named_group(groups, names[0])
    if named is not None:
        return named
    first = split_outside_brackets(names[0], ", ")[0]
    code = parse_word(split_word(first)[0])
    if code is not None:
        return _group_of_code(code, names[0])
    word = _without_options(names[0])
    in_order = list(dict.fromkeys([*_FIRST, *sorted(groups.names)]))
    for group in in_order:
        if word in _names_of(groups, group):
            return group, names[0]
    text = " ".join(names)
    if find_word(text) is not None:
        return _WORD, text
    parts = _names_of_parts()
    if word in BY_NAME:
        # Documents of JSON are called as the commands that print them.
        parts.pop("document")
    for kind, names_of_kind in parts.items():
        if word in names_of_kind:
            return kind, word
    if word in groups.names or _key_rows(groups, word):
        return _KEY, word
    members = [_names_of(groups, group) for group in in_order]
    every = groups.names.union(*members, *parts.values())
    typed = names[0].partition("=")[0]
    kinds = {*groups.names, *parts}
    near = _near(text, kinds) or _near(word, kinds) or nearest(typed, every, _WORD)
    raise UnknownNameError(f"nothing is called '{word}'; {near}")


def _find_in_named_group(groups: ConfigGroups, text: str) -> tuple[str, str] | None:
    """Return the group and the name of GROUP=NAME; None for other texts.

    Raises:
        UnknownNameError: the group has no such name.
    """
    group, equals, name = text.partition("=")
    if not equals:
        return None
    if group in ("estimator", "objective"):
        return group, name
    if group in groups.names:
        return group, groups.member(group, _without_options(name))
    if group in PARTS:
        return group, PARTS[group].find(PARTS[group].resolve(name))
    return None


def _names_of_parts() -> dict[str, set[str]]:
    """Return the names of what is no config group, by kind."""
    names = {kind: set(registry) for kind, registry in PARTS.items()}
    for kind, rows in OTHERS.items():
        names[kind] = {row["name"] for row in rows()}
    return names


def _key_rows(groups: ConfigGroups, word: str) -> list[dict[str, Any]]:
    """Return the config keys with a name, or whose last part it is, as tables have it."""
    rows = rows_of(RunParameters, {})
    for group, registry in groups.registries.items():
        meaning = f"one of {len(registry.names())}: advsweep list {group}"
        rows.append({**dict.fromkeys(rows[0], ""), "key": group, "meaning": meaning})
        rows += group_rows(groups, group)
    return [row for row in rows if row["key"] == word or row["key"].endswith(f".{word}")]


def _describe_word(text: str, output_format: options.ListFormat) -> None:
    """Print what a word of a table or a figure means."""
    word = find_word(text)
    assert word is not None
    record = {
        "label": word.text,
        "name": word.name,
        "unit": word.unit,
        "better": word.better,
        "of": word.of,
        "description": word.meaning,
    }
    if output_format == "table":
        print_pairs({key: value for key, value in record.items() if value})
    else:
        print_listing([record], output_format)


def _near(word: str, kinds: Collection[str]) -> str | None:
    """Return what is meant by a word that is no component but another word of ours."""
    kind = word.lower().removesuffix("s")
    if kind in kinds or f"{kind}s" in kinds:
        return f"`advsweep list {kind}s` lists all, `advsweep keys {kind}` their keys"
    if word.lower() in BY_NAME:
        return f"`advsweep help {word.lower()}` describes the command"
    values = [f"{VALUES}.{kind}" for kind in kinds]
    for section in (f"{VALUES}.estimator", f"{VALUES}.objective", COLUMNS, KEYS, COMMANDS, *values):
        said = hint(section, word)
        if said is not None:
            return said
    return None


def _group_of_code(word: Word, name: str) -> tuple[str, str]:
    """Return the group of a component in a file, by the function that the file defines.

    That of an estimator unless only another kind's function is there.
    """
    kinds: dict[str, Registry[Any]] = {"estimator": ESTIMATORS, "objective": OBJECTIVES, **PARTS}
    text = ""
    with suppress(OSError, UnicodeDecodeError):
        text = Path(word.place).expanduser().read_text("utf-8") if word.is_file else ""
    for group, registry in kinds.items():
        function = word.object or registry.function
        if registry.function == function and re.search(rf"^def {function}\(", text, re.MULTILINE):
            return group, PARTS[group].resolve(name) if group in PARTS else name
    return "estimator", name


def _without_options(text: str) -> str:
    """Return the first name of a list, without the options behind its colon."""
    return re.split("[,:]", text)[0]


def _names_of(groups: ConfigGroups, group: str) -> set[str]:
    """Return the names of a group, with aliases and those that have no definition."""
    names = set(groups.members(group))
    registry = groups.registries.get(group)
    if registry is not None:
        names.update(registry.aliases, registry.without_definition())
    return names


def _describe_preset(
    groups: ConfigGroups, group: str, name: str, output_format: options.ListFormat
) -> None:
    print_members([member_record(groups, group, name)], output_format)
    if output_format == "table":
        echo("\n" + textwrap.fill(groups.description(group, name), 96))


def _describe_options(
    groups: ConfigGroups, group: str, name: str, output_format: options.ListFormat
) -> None:
    """Print the docstring and the keys of a component without a description of its own."""
    if output_format == "table":
        registry = PARTS.get(group)
        if registry is not None:
            cls = registry.get(name)
        else:
            cls, _ = member_component(groups, group, groups.member(group, name))
        echo(f"{group}={name}\n\n{inspect.getdoc(cls) or ''}\n")
    print_listing(group_rows(groups, group, name), output_format, hidden=("of",))
    if output_format == "table" and cls.named_code is not None:
        print_code(cls.named_code.where, cls.named_code.text)


def _describe_estimators(
    names: Sequence[str],
    fields: Sequence[str],
    *,
    rewards: str | None,
    inputs: Sequence[str],
    output: Path | None,
    output_format: options.ListFormat,
) -> None:
    from advsweep.cli.estimators import build_named, parse_inputs  # imports torch

    parsed = parse_inputs(inputs)
    estimators = build_named(ESTIMATORS, names, fields)
    first = next(iter(estimators.values()))
    if rewards is not None:
        if len(estimators) > 1:
            raise ConfigError(f"--rewards: expected one estimator, got {', '.join(estimators)}")
        _apply_estimator(first, rewards, parsed, output_format)
    elif len(estimators) > 1 or output is not None or output_format == "csv":
        _compare_masses(estimators, parsed, output, output_format)
    elif parsed:
        raise ConfigError("--input: expected --rewards or --output beside it")
    else:
        _describe_estimator(first, output_format)


def _describe_estimator(estimator: Estimator, output_format: options.ListFormat) -> None:
    from advsweep.cli.estimators import describe_estimator, print_estimator

    record = describe_estimator(estimator)
    if output_format == "json":
        print_json(record)
    else:
        print_estimator(record)


def _apply_estimator(
    estimator: Estimator,
    rewards: str,
    inputs: Mapping[str, Rows],
    output_format: options.ListFormat,
) -> None:
    """Print the advantages that an estimator gives to groups of rewards."""
    from advsweep.cli.estimators import apply, print_applied, rollout_rows

    applied = apply(estimator, rewards, inputs)
    if output_format == "json":
        print_json({"estimator": estimator.plain(), **applied})
    elif output_format == "csv":
        print_listing(rollout_rows(applied), output_format)
    else:
        print_applied(applied)


def _compare_masses(
    estimators: Mapping[str, Estimator],
    inputs: Mapping[str, Rows],
    output: Path | None,
    output_format: options.ListFormat,
) -> None:
    """Print or draw the masses of estimators over the solve rate."""
    from advsweep.cli.episodes import turns_of_example
    from advsweep.cli.estimators import mass_curves, single_numbers
    from advsweep.estimators.contract import fitting_size

    if output is not None:
        from advsweep.report.figures.draw import check_path

        check_path(output)
    numbers = single_numbers(inputs)
    size = max(fitting_size(estimator, _GROUP_SIZE) for estimator in estimators.values())
    records, assumed = mass_curves(estimators, size, numbers)
    for name in assumed:
        echo(f"Assuming {name} = {numbers[name]:g}; set it with --input {name}=...", err=True)
    if output is None:
        print_listing(records, output_format)
        return
    turns = {label: turns_of_example(estimator) for label, estimator in estimators.items()}
    draw_masses(records, output, numbers, {label: rows for label, rows in turns.items() if rows})
    echo_line(f"Wrote {output}.", err=True)


def draw_masses(
    records: Sequence[dict[str, Any]],
    output: Path,
    inputs: dict[str, float],
    turns: Mapping[str, Sequence[Mapping[str, Any]]] | None = None,
) -> None:
    """Draw the masses of estimators over the solve rate into a file.

    Args:
        turns: by estimator the turns of example episodes with their advantages, drawn below.
    """
    from advsweep.report.figures.advantages import draw_episodes, draw_masses
    from advsweep.report.figures.draw import write

    curves: dict[str, list[tuple[float, Sequence[float]]]] = {}
    for record in records:
        numbers = [record[name] for name in ("m_S", "m_F", "sum", "ratio")]
        curves.setdefault(record["estimator"], []).append((record["p"], numbers))
    where = "".join(f", {name} = {value:g}" for name, value in inputs.items())
    title = f"Expected masses, G = {records[0]['group_size']}{where}"
    charts = [draw_masses(curves, title)]
    if turns:
        note = (
            "A letter is the state before a turn; missing: the episode is over. Masses are those "
            "of episodes of one turn"
        )
        charts.append(draw_episodes(turns, "Advantages of the turns of four episodes", note))
    write(charts, output)


def _describe_objectives(
    groups: ConfigGroups,
    names: Sequence[str],
    fields: Sequence[str],
    *,
    output: Path | None,
    output_format: options.ListFormat,
) -> None:
    from advsweep.cli import objectives  # imports torch
    from advsweep.cli.estimators import build_named

    def preset(name: str) -> Mapping[str, Any]:
        return groups.member_values("objective", name)

    built = build_named(OBJECTIVES, names, fields, preset)
    if output is not None:
        from advsweep.report.figures.advantages import draw_weights
        from advsweep.report.figures.draw import check_path, write

        check_path(output)
        title = f"Weight of a token sampled with π₀ = {objectives.PROBABILITY:g}"
        write([draw_weights(objectives.token_weights(built, objectives.CURVE), title)], output)
        echo_line(f"Wrote {output}.", err=True)
    elif output_format == "csv" or (output_format == "json" and len(built) > 1):
        print_listing(objectives.token_weights(built, objectives.CURVE), output_format)
    elif len(built) > 1:
        objectives.print_weights(objectives.token_weights(built, objectives.RATIOS))
    else:
        [(label, objective)] = built.items()
        name = label.split()[0]
        record = objectives.describe_objective(
            label, objective, preset(name), comment=groups.description("objective", name)
        )
        if output_format == "json":
            print_json(record)
        else:
            objectives.print_objective(record)
            if objective.named_code is not None:
                print_code(objective.named_code.where, objective.named_code.text)


def _describe_task(
    groups: ConfigGroups, name: str, fields: Sequence[str], output_format: options.ListFormat
) -> None:
    values = {f"task.{key}": value for key, value in parse_assignments(fields).items()}
    composed = groups.compose({"task": groups.member("task", name)})
    task = TASKS.build(patch(groups, composed, values)["task"], where="task")
    splits = {split.value: _split_record(task.problems(split)) for split in Split}
    floors = task.floors()
    means = {
        name: {f"pass@{k}": float(floor.pass_at(k, floor.rates).mean()) for k in (1, 8, 64)}
        for name, floor in floors.items()
    }
    try:
        task.check()
        task.check_consent()
    except ConfigError as error:
        warn(str(error))
    if output_format == "json":
        print_json({"name": name, "settings": task.plain(), "splits": splits, "floors": means})
        return
    for split, record in splits.items():
        levels = ", ".join(f"{count} of level {level}" for level, count in record["levels"].items())
        many = f": {levels}" if len(record["levels"]) > 1 else ""
        echo_line(f"{_title(split)}: {counted(record['problems'], 'problem')}{many}")
    for name, floor in floors.items():
        scores = ", ".join(f"{k} {mean:.4f}" for k, mean in means[name].items())
        echo_line(f"floor {name}, {floor.help}: {scores}")
    for split, record in splits.items():
        for problem in record["examples"]:
            _print_problem(_title(split), problem)


def _title(split: str) -> str:
    return split.replace("_", "-")


def _print_problem(split: str, problem: Mapping[str, Any]) -> None:
    echo_line("")
    echo_line(f"--- {split} problem {problem['id']}, level {problem['level']}")
    if problem["system"]:
        echo_line(f"[system] {problem['system']}")
    echo(problem["prompt"])
    echo_line(f"--- gold: {gold_text(problem['gold'])}")


def _split_record(problems: Sequence[Problem]) -> dict[str, Any]:
    levels = Counter(problem.level for problem in problems)
    return {
        "problems": len(problems),
        "levels": {str(level): levels[level] for level in sorted(levels)},
        "examples": [_problem_record(problem) for problem in problems[:_EXAMPLES]],
    }


def _problem_record(problem: Problem) -> dict[str, Any]:
    # A solution only where there is nothing else.
    answer = {key: value for key, value in problem.reference.items() if key != "solution"}
    return {
        "id": problem.id,
        "level": problem.level,
        "system": problem.system,
        "prompt": problem.prompt,
        "gold": answer or dict(problem.reference),
    }
