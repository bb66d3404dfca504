"""`advsweep estimators [show]`: list estimators, and describe one in full."""

from __future__ import annotations

import inspect
import textwrap
from enum import Enum
from typing import TYPE_CHECKING, Annotated, Any

import typer

from advsweep.cli.commands.estimators.inputs import NEUTRAL
from advsweep.cli.shared import options
from advsweep.cli.shared.help import App
from advsweep.cli.shared.options import RecordFormat
from advsweep.cli.shared.output import echo, print_columns, print_json, show_number
from advsweep.errors import BatchError

if TYPE_CHECKING:
    from advsweep.estimators import Estimator


app = App()


class TableFormat(Enum):
    """Output format of the table of estimators."""

    TABLE = "table"
    MARKDOWN = "markdown"
    CSV = "csv"
    JSON = "json"


@app.callback(invoke_without_command=True)
def root(
    context: typer.Context,
    output: Annotated[
        TableFormat,
        typer.Option(
            "--format", help="table for people; markdown for a page; csv or json for programs."
        ),
    ] = TableFormat.TABLE,
) -> None:
    """List, show, apply and plot estimators.

    Without a command, lists every estimator by family, with its formula and source. On a terminal
    that is too narrow for all columns, some are left out.

    Examples:
        advsweep estimators
        advsweep estimators show fade
    """
    if context.invoked_subcommand is not None:
        return
    from advsweep.cli.shared.options import ListFormat
    from advsweep.cli.shared.output import print_listing

    if output is TableFormat.MARKDOWN:
        echo(markdown_table(), nl=False)
        return
    print_listing(
        _records(),
        ListFormat(output.value),
        optional=("released", "held", "aliases", "family", "source"),
    )
    if output is TableFormat.TABLE:
        _print_refused()


def markdown_table() -> str:
    """Returns the table of estimators in the README, in GitHub's Markdown."""
    from advsweep.cli.shared.output import to_markdown

    rows = [
        [
            record["family"],
            ", ".join(f"`{name}`" for name in (record["name"], *record["aliases"])),
            record["formula"].replace("|", r"\|"),
            record["source"],
            record["held"] + "".join(f"; `{option}`" for option in record["released"]),
        ]
        for record in _records()
    ]
    return to_markdown(("family", "name, aliases", "advantage", "source", "held to"), rows)


def held(cls: type[Estimator]) -> str:
    """Names what the defaults of an estimator follow: a paper, released code, or our reading."""
    return ", ".join(where.value for where in cls.provenance) or "no source named"


def _records() -> list[dict[str, Any]]:
    from advsweep.estimators import ESTIMATORS

    aliases = ESTIMATORS.aliases()
    return [
        {
            "name": c.name,
            "aliases": sorted(alias for alias, name in aliases.items() if name == c.name),
            "family": c.family,
            "formula": c.formula,
            "source": f"{c.paper}, {c.equation}",
            "held": held(c),
            "released": list(c.released_options),
        }
        for c in sorted(ESTIMATORS.classes(), key=lambda c: (c.family, c.name))
    ]


def _print_refused() -> None:
    from advsweep.estimators import ESTIMATORS

    names = ", ".join(sorted(ESTIMATORS.unavailable()))
    echo(
        f"\nNamed in papers but not defined there: {names}\n"
        "(advsweep estimators show NAME explains what is missing)",
        err=True,
    )


# Docstring paragraphs that are shown separately.
_RELEASED, _DEPARTURES = "Released code: ", "Departures: "
_RATES = (0.1, 0.3, 0.5, 0.8)


def show(
    name: options.EstimatorName,
    fields: options.EstimatorOptions = None,
    output: options.Record = RecordFormat.TEXT,
) -> None:
    """Show an estimator: formula, source, options, departures.

    Also shows its inputs, the advantages of degenerate groups and the masses, by the defaults or
    the given options.

    Examples:
        advsweep estimators show fade
        advsweep estimators show asym_grpo -o delta=0.5
    """
    from advsweep.cli.commands.estimators.inputs import build_from_options

    estimator = build_from_options(name, fields or [])
    record = describe(estimator)
    if output is RecordFormat.JSON:
        print_json(record)
    else:
        _print(record)


def describe(estimator: Estimator) -> dict[str, Any]:
    """Return everything about an estimator that its page and `show` print, in JSON types."""
    from advsweep.components import parameters
    from advsweep.estimators import ESTIMATORS

    description, released, departures = _documentation(type(estimator))
    aliases = ESTIMATORS.aliases()
    return {
        "name": estimator.name,
        "aliases": sorted(a for a, target in aliases.items() if target == estimator.name),
        "family": estimator.family,
        "formula": estimator.formula,
        "paper": estimator.paper,
        "equation": estimator.equation,
        "held": held(type(estimator)),
        "description": description,
        "released": released,
        "released_options": list(estimator.released_options),
        "departures": departures,
        "needs": sorted(estimator.needs),
        "uses": sorted(estimator.uses),
        "minimum_group": estimator.minimum_group,
        "group_multiple": estimator.group_multiple,
        "exchangeable": estimator.exchangeable,
        "rewards": _accepted_rewards(estimator),
        "stateful": estimator.stateful,
        "memory": estimator.state_dict(),
        "parameters": parameters(type(estimator)),
        "options": estimator.plain(),
        "inputs": {n: v for n, v in NEUTRAL.items() if n in estimator.needs},
        "degenerate": _degenerate_groups(estimator),
        "masses": _expected_masses(estimator),
    }


def _documentation(cls: type[Estimator]) -> tuple[str, str | None, str]:
    """Splits a docstring into description, note on the released code, and departures."""
    marked: dict[str, list[str]] = {_RELEASED: [], _DEPARTURES: []}
    description = []
    for paragraph in inspect.cleandoc(cls.__doc__ or "").split("\n\n"):
        marker = next((m for m in marked if paragraph.startswith(m)), None)
        if marker is None:
            description.append(paragraph)
        else:
            marked[marker] += paragraph.removeprefix(marker).split()
    released, departures = (" ".join(words) for words in marked.values())
    return "\n\n".join(description), released or None, departures or "none"


def _degenerate_groups(estimator: Estimator) -> list[dict[str, Any]]:
    """Computes the advantages of groups with equal rewards, each alone in its batch."""
    size = _group_size(estimator, 4)
    groups = {
        "all wrong": [0.0] * size,
        "all correct": [1.0] * size,
        "all 0.9": [0.9] * size,
        "one rollout, wrong": [0.0],
        "one rollout, correct": [1.0],
    }
    return [
        {"group": name, "rewards": row, **_applied(estimator, row)} for name, row in groups.items()
    ]


def _accepted_rewards(estimator: Estimator) -> str:
    """Describes the rewards that the formula is defined for."""
    if estimator.verifier_free:
        return "not read"
    others = _group_size(estimator, 4) - 1
    if _applied(estimator, [1.5] + [2.0] * others)["refused"] is None:
        return "any finite numbers"
    if _applied(estimator, [0.5] + [0.9] * others)["refused"] is None:
        return "means of a group in [0, 1]"
    return "0 and 1 only"


def _applied(estimator: Estimator, row: list[float]) -> dict[str, Any]:
    import copy

    import torch

    from advsweep.estimators.batch import GroupBatch, spread_input

    rewards = torch.tensor([row], dtype=torch.float64)
    inputs: dict[str, Any] = {
        name: spread_input(name, NEUTRAL[name], rewards) for name in estimator.needs
    }
    try:
        batch = GroupBatch(rewards=rewards, **inputs)
        found = copy.deepcopy(estimator).compute(batch)
    except BatchError as error:
        return {"advantages": None, "kept": None, "refused": str(error)}
    return {
        "advantages": found.rollout_means(batch.lengths)[0].tolist(),
        "kept": bool(found.keep.all()),
        "refused": None,
    }


def _expected_masses(estimator: Estimator) -> dict[str, Any]:
    from advsweep.diagnostics import expected_masses

    size = _group_size(estimator, 8)
    inputs = {name: NEUTRAL[name] for name in estimator.needs}
    try:
        found = [expected_masses(estimator, p, size, **inputs) for p in _RATES]
    except BatchError as error:
        return {"group_size": size, "refused": str(error), "rates": []}
    rates = [
        {"p": p, "success": mass.success, "failure": mass.failure}
        for p, mass in zip(_RATES, found, strict=True)
    ]
    return {"group_size": size, "refused": None, "rates": rates}


def _group_size(estimator: Estimator, least: int) -> int:
    """Returns the smallest valid group size of at least `least` rollouts."""
    multiple = estimator.group_multiple
    return -(-max(least, estimator.minimum_group) // multiple) * multiple


def _print(record: dict[str, Any]) -> None:
    also = f" (also {', '.join(record['aliases'])})" if record["aliases"] else ""
    echo(f"{record['name']}{also}: {record['formula']}")
    echo(f"family: {record['family']}    source: {record['paper']}, {record['equation']}")
    echo(f"defaults held to: {record['held']}")
    echo(f"\n{record['description']}\n")
    if record["released"]:
        released = f"the authors' released code{_options(record)}: {record['released']}"
        echo(textwrap.fill(released, 96) + "\n")
    echo(textwrap.fill(f"departures from the source: {record['departures']}", 96) + "\n")
    echo(f"needs: {', '.join(['rewards', *record['needs']])}")
    if record["uses"]:
        echo(f"reads if given: {', '.join(record['uses'])}")
    echo(f"rewards: {record['rewards']}")
    echo(f"group size: {sizes(record)}")
    if not record["exchangeable"]:
        echo("order: the order of the rollouts within a group matters")
    if record["stateful"]:
        start = ", ".join(f"{key} {_plain(value)}" for key, value in record["memory"].items())
        echo(f"memory, before the first step: {start}")
    echo("")
    if record["parameters"]:
        columns = ("parameter", "type", "default", "range", "meaning")
        print_columns(columns, [[_plain(v) for v in row.values()] for row in record["parameters"]])
    else:
        echo("no parameters")
    inputs = "".join(f", {name} {value:g}" for name, value in record["inputs"].items())
    echo(f"\ndegenerate groups, each alone in a first step{inputs}")
    print_columns(
        ("group", "rewards", "advantages"),
        [[row["group"], _numbers(row["rewards"]), _outcome(row)] for row in record["degenerate"]],
    )
    masses = record["masses"]
    echo(f"\nexpected masses at group size {masses['group_size']}{inputs}")
    if masses["refused"]:
        echo(f"refused: {masses['refused']}")
        return
    print_columns(
        ("p", "m_S", "m_F"),
        [[show_number(value) for value in row.values()] for row in masses["rates"]],
    )


def _options(record: dict[str, Any]) -> str:
    """Returns the options that select the released code, in brackets, or an empty string."""
    ways = (" ".join(f"-o {o}" for o in way.split()) for way in record["released_options"])
    listed = ", ".join(ways)
    return f" ({listed})" if listed else ""


def _plain(value: Any) -> str:
    """Formats a value as YAML."""
    words = {None: "null", True: "true", False: "false"}
    return words[value] if value is None or isinstance(value, bool) else str(value)


def sizes(record: dict[str, Any]) -> str:
    """Return the group sizes that an estimator accepts, in words."""
    at_least = f"at least {record['minimum_group']}"
    multiple = record["group_multiple"]
    return at_least if multiple == 1 else f"{at_least}, a multiple of {multiple}"


def _numbers(values: list[float]) -> str:
    return " ".join(show_number(value) for value in values)


def _outcome(row: dict[str, Any]) -> str:
    if row["refused"]:
        return f"refused: {row['refused']}"
    return _numbers(row["advantages"]) + ("" if row["kept"] else ", left out of the update")
