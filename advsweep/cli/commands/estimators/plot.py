"""`advsweep estimators plot`: draw or print gradient masses over the solve rate."""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterable, Mapping, Sequence
from enum import Enum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from advsweep.cli.shared.options import ListFormat
from advsweep.cli.shared.output import echo
from advsweep.errors import BatchError, ConfigError

if TYPE_CHECKING:
    from advsweep.cli.commands.estimators.inputs import Rows
    from advsweep.diagnostics import Masses
    from advsweep.estimators import Estimator

_RATES = tuple(percent / 100 for percent in range(1, 100))


class Kind(Enum):
    """Masses averaged over groups, of a single group, or in the limit of large groups."""

    EXPECTED = "expected"
    GROUP = "group"
    POPULATION = "population"


def plot(
    names: Annotated[
        list[str],
        typer.Argument(
            metavar="NAMES",
            help="Estimators, separated by commas or spaces; options follow colons: "
            "fade,power_alpha:alpha=3 dr_grpo.",
        ),
    ],
    group_size: Annotated[int, typer.Option(min=1, help="Rollouts per prompt, G.")] = 8,
    target: Annotated[
        Path | None,
        typer.Option(
            "-o",
            "--output",
            metavar="FILE",
            help="Draw into this .png, .svg or .pdf file (default: print the numbers).",
        ),
    ] = None,
    compare: Annotated[
        bool, typer.Option("--compare", help="Draw all estimators in the same axes.")
    ] = False,
    kind: Annotated[
        Kind,
        typer.Option(
            help="expected: mean over groups of G at a solve rate; group: one group, by its own "
            "rate; population: the limit of large groups, where closed forms are exact."
        ),
    ] = Kind.EXPECTED,
    batch_rate: Annotated[
        float | None,
        typer.Option(
            metavar="P",
            help="Set the solve rate of the rest of the batch, for estimators that use batch "
            "statistics (fade, a_grae, ...) (default: the rate of each point).",
        ),
    ] = None,
    turns: Annotated[
        int,
        typer.Option(
            min=1, help="Turns of a prompt with rollout=retry; show the expected masses of each."
        ),
    ] = 1,
    retry_if: Annotated[
        str,
        typer.Option(help="Start the next turn if the first, all or any rollouts failed."),
    ] = "first",
    inputs: Annotated[
        list[str] | None,
        typer.Option(
            "--input",
            metavar="NAME=NUMBER",
            help="Give another input, one number for all rollouts: token_entropy=0.3; "
            "ref_rewards is the reference's solve rate; may be repeated.",
        ),
    ] = None,
    output: Annotated[
        ListFormat | None,
        typer.Option("--format", help="Print the numbers in this format, in addition to a figure."),
    ] = None,
) -> None:
    """Draw the masses of estimators over the solve rate.

    The masses m_S and m_F are the weights per rollout of successes and failures. The figure shows
    both, their sum and their ratio, computed by exact enumeration of all groups.

    Examples:
        advsweep estimators plot dr_grpo,power_alpha:alpha=3,asym_grpo:delta=0.5 --compare -o m.png
        advsweep estimators plot dr_grpo --turns 3 --compare -o turns.svg
    """
    from advsweep.cli.commands.estimators.inputs import (
        NEUTRAL,
        build_from_options,
        check_inputs,
        parse_inputs,
    )

    if target is not None:
        from advsweep.report.figures.style import check_path

        check_path(target)
    given = single_numbers(parse_inputs(inputs or []))
    estimators = {}
    for spec in dict.fromkeys(part for text in names for part in split(text, ", ")):
        name, *fields = split(spec, ":")
        estimators[" ".join((name, *fields))] = build_from_options(name, fields)
    if not estimators:
        raise ConfigError("NAMES: expected at least one estimator, got none")
    _refuse_verifier_free(estimators.values())
    assumed = sorted({n for e in estimators.values() for n in e.needs} - given.keys())
    given |= {name: NEUTRAL[name] for name in assumed}
    check_inputs(estimators.values(), given)
    if turns > 1 and kind is not Kind.EXPECTED:
        raise ConfigError(f"--turns: expected --kind expected with turns, got {kind.value}")
    curves = {
        label: _curve(estimator, kind, group_size, batch_rate, given)
        for label, estimator in estimators.items()
    }
    if turns > 1:
        curves = _curves_of_turns(curves, group_size, turns, retry_if)
    for name in assumed:
        echo(f"Assuming {name} = {given[name]:g}; set it with --input {name}=...", err=True)
    if target is not None:
        where = "" if kind is Kind.POPULATION else f", G = {group_size}"
        where += "" if batch_rate is None else f", batch at p = {batch_rate:g}"
        where += "".join(f", {name} = {value:g}" for name, value in given.items())
        _draw(curves, target, f"{kind.value.capitalize()} masses{where}", kind, compare)
        echo(f"Wrote {target}.", err=True)
    if target is None or output is not None:
        _print(curves, kind, group_size, output or ListFormat.TABLE)
    else:
        echo(str(target))


Curve = list[tuple[float, "Masses"]]


def split(text: str, separators: str) -> list[str]:
    """Splits at separators outside brackets and drops empty parts."""
    parts, depth = [""], 0
    for character in text:
        depth += (character in "([{") - (character in ")]}")
        if character in separators and depth == 0:
            parts.append("")
        else:
            parts[-1] += character
    return [part.strip() for part in parts if part.strip()]


def single_numbers(given: Mapping[str, Rows | int]) -> dict[str, float]:
    """Returns inputs that are one number for all rollouts.

    Raises:
        BatchError: an input has several.
    """
    numbers = {}
    for name, rows in given.items():
        cells = [rows] if isinstance(rows, int) else [cell for row in rows for cell in row]
        if len(cells) != 1 or cells[0] is None:
            raise BatchError(f"--input {name}: expected one number for all, got {len(cells)}")
        numbers[name] = cells[0]
    return numbers


def _refuse_verifier_free(estimators: Iterable[Estimator]) -> None:
    for estimator in estimators:
        if estimator.verifier_free:
            raise BatchError(
                f"estimator '{estimator.name}' does not read rewards, so its masses do not "
                "depend on the solve rate; omit it"
            )


def _curve(
    estimator: Estimator,
    kind: Kind,
    group_size: int,
    batch_rate: float | None,
    inputs: Mapping[str, float],
) -> Curve:
    """Returns the solve rates and the masses at each."""
    from advsweep.diagnostics import expected_masses, group_masses, population_masses

    if kind is Kind.GROUP:
        of: Callable[..., Masses] = functools.partial(group_masses, group_size=group_size)
    elif kind is Kind.EXPECTED:
        of = functools.partial(expected_masses, group_size=group_size)
    else:
        of = population_masses
    own = {n: v for n, v in inputs.items() if n in estimator.needs | estimator.uses}
    points = [(p, p) for p in _RATES]
    if kind is Kind.GROUP:
        points = [(k / group_size, k) for k in range(group_size + 1)]
    return [(p, of(estimator, point, batch_rate=batch_rate, **own)) for p, point in points]


def _curves_of_turns(
    curves: Mapping[str, Curve], group_size: int, turns: int, retry_if: str
) -> dict[str, Curve]:
    """Returns a curve per estimator and turn, given those of one turn."""
    from advsweep.diagnostics.masses import of_turns
    from advsweep.rollouts import ROLLOUTS
    from advsweep.rollouts.retry import Retry

    policy = ROLLOUTS.build(
        {"name": "retry", "turns": turns, "retry_if": retry_if}, where="rollout"
    )
    assert isinstance(policy, Retry)
    found: dict[str, Curve] = {
        f"{label}, turn {t}": [] for label in curves for t in range(1, turns + 1)
    }
    for label, curve in curves.items():
        for p, once in curve:
            masses = of_turns(once, policy.reach(p, group_size))
            for turn, mass in enumerate(masses, start=1):
                found[f"{label}, turn {turn}"].append((p, mass))
    return found


def _draw(curves: Mapping[str, Curve], target: Path, title: str, kind: Kind, compare: bool) -> None:
    from advsweep.report.figures.masses import MassCurve, draw_masses
    from advsweep.report.figures.style import save

    figure = draw_masses(
        [
            MassCurve(
                label=label,
                rates=[p for p, _ in curve],
                success=[mass.success for _, mass in curve],
                failure=[mass.failure for _, mass in curve],
                total=[mass.total for _, mass in curve],
                ratio=[mass.ratio for _, mass in curve],
            )
            for label, curve in curves.items()
        ],
        title=title,
        compare=compare,
        points=kind is Kind.GROUP,
    )
    save(figure, target)


def _print(curves: Mapping[str, Curve], kind: Kind, group_size: int, output: ListFormat) -> None:
    from advsweep.cli.shared.output import print_listing

    records: Sequence[dict[str, Any]] = [
        {
            "estimator": label,
            "kind": kind,
            "group_size": None if kind is Kind.POPULATION else group_size,
            "p": p,
            "m_S": mass.success,
            "m_F": mass.failure,
            "sum": mass.total,
            "ratio": mass.ratio,
        }
        for label, curve in curves.items()
        for p, mass in curve
    ]
    print_listing(records, output)
