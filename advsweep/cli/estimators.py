"""Estimators on the command line: parse options and inputs, describe, apply, and find masses."""

from __future__ import annotations

import copy
import dataclasses
import inspect
import math
import textwrap
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

import torch
from torch import Tensor

from advsweep.cli.output import echo, print_columns, show_number, to_markdown
from advsweep.components import parameters
from advsweep.config.overrides import parse_assignments
from advsweep.diagnostics import Masses, expected_masses, masses
from advsweep.errors import BatchError, ConfigError, nearest
from advsweep.estimators import ESTIMATORS, Estimator, build_estimator
from advsweep.estimators.batch import (
    COUNTERS,
    PER_PROMPT,
    PER_TOKEN,
    Advantages,
    GroupBatch,
    Groups,
    spread_input,
)

Rows = list[list[float | None]]
"""Groups of numbers; None marks a missing rollout."""

NEUTRAL = {
    "lengths": 1.0,
    "ref_rewards": 0.0,
    "token_entropy": 0.3,
    "token_entropy_exact": 0.3,
    "token_entropies": 0.3,
    "self_certainty": 1.0,
    "solve_rates": 0.5,
    "answered": 1.0,
    "prompt_ids": 0.0,
    "step": 1,
    "total_steps": 100,
}
"""Default of each input other than the rewards: one number for all rollouts."""

_RATES = (0.1, 0.3, 0.5, 0.8)
_CURVE = tuple(percent / 100 for percent in range(1, 100))


# Arguments


def split(text: str, separators: str) -> list[str]:
    """Split at separators outside brackets and drop empty parts."""
    parts, depth = [""], 0
    for character in text:
        depth += (character in "([{") - (character in ")]}")
        if character in separators and depth == 0:
            parts.append("")
        else:
            parts[-1] += character
    return [part.strip() for part in parts if part.strip()]


def build_named(texts: Iterable[str], fields: Sequence[str] = ()) -> dict[str, Estimator]:
    """Return estimators by label, from names with options after colons: `power_alpha:alpha=3`.

    Args:
        fields: further `FIELD=VALUE` options of each.

    Raises:
        ConfigError: there is none, or a name, an option or its value is invalid.
    """
    built = {}
    for spec in dict.fromkeys(part for text in texts for part in split(text, ", ")):
        name, *own = split(spec, ":")
        built[" ".join((name, *own))] = build_from_options(name, [*own, *fields])
    if not built:
        raise ConfigError("expected at least one estimator, got none")
    return built


def build_from_options(name: str, texts: Sequence[str]) -> Estimator:
    """Build an estimator from its name and `FIELD=VALUE` options in Hydra's grammar.

    Raises:
        ConfigError: the name, an option or its value is invalid.
    """
    values: dict[str, Any] = {}
    for key, given in parse_assignments(texts).items():
        *path, last = key.split(".")
        node = values
        for part in path:
            # `base.FIELD=VALUE` updates the default base, which may be a name or unset.
            known = {p["name"]: p["default"] for p in parameters(ESTIMATORS.get(name))}
            value = node.get(part, known.get(part))
            node[part] = {"name": value} if isinstance(value, str) else dict(value or {})
            node = node[part]
        node[last] = given
    return build_estimator(name, **values)


def parse_rows(text: str, where: str) -> Rows:
    """Parse groups of numbers, `1,0,0,1;0,0,0,1`, where `-` marks a missing rollout.

    Raises:
        BatchError: a cell is empty or not a number, or the groups differ in length.
    """
    rows = [[_number(cell.strip(), where) for cell in row.split(",")] for row in text.split(";")]
    sizes = [len(row) for row in rows]
    if len(set(sizes)) > 1:
        raise BatchError(
            f"{where}: expected groups of the same length, got {', '.join(map(str, sizes))}; "
            "write - for a missing rollout"
        )
    return rows


def _number(cell: str, where: str) -> float | None:
    if cell == "-":
        return None
    try:
        return float(cell)
    except ValueError:
        got = f"'{cell}'" if cell else "nothing"
        raise BatchError(
            f"{where}: expected numbers such as 1,0,0,1, groups separated by ;, got {got}"
        ) from None


def parse_inputs(texts: Iterable[str]) -> dict[str, Rows | int]:
    """Return the other inputs, `NAME=VALUES`, by name; steps are whole numbers, the rest rows.

    Raises:
        BatchError: an unknown name, or values that are no such numbers.
    """
    own = {"rewards", "mask", "frequencies"}
    known = [f.name for f in dataclasses.fields(GroupBatch) if f.name not in own]
    inputs: dict[str, Rows | int] = {}
    for text in texts:
        name, separator, values = text.partition("=")
        name = name.strip()
        if not separator:
            raise BatchError(f"--input: expected NAME=VALUES, got '{text}'")
        if name not in known:
            raise BatchError(f"--input: unknown input '{name}'; {nearest(name, known)}")
        if name not in COUNTERS:
            inputs[name] = parse_rows(values, f"--input {name}")
        elif values.strip().isdecimal() and int(values) > 0:
            inputs[name] = int(values)
        else:
            raise BatchError(f"--input {name}: expected a whole number >= 1, got '{values}'")
    return inputs


def single_numbers(given: Mapping[str, Rows | int]) -> dict[str, float]:
    """Return inputs that are one number for all rollouts.

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


def check_inputs(estimators: Iterable[Estimator], given: Iterable[str]) -> None:
    """Check that every needed input is given and that every given input is read.

    Raises:
        BatchError: an estimator lacks an input, or no estimator reads one.
    """
    estimators, given = list(estimators), set(given)
    for estimator in estimators:
        for name in sorted(estimator.needs - given):
            raise BatchError(
                f"estimator '{estimator.name}' needs {name}; give it with --input {name}=..."
            )
    unread = given.difference(*(e.needs | e.uses for e in estimators))
    for name in sorted(unread):
        names = ", ".join(sorted({e.name for e in estimators}))
        raise BatchError(f"--input {name}: not read by {names}; omit it")


# The list of all estimators


def held(cls: type[Estimator]) -> str:
    """Return what the defaults of an estimator follow: a paper, released code, or our reading."""
    return ", ".join(where.value for where in cls.provenance) or "no source named"


def _aliases(name: str) -> list[str]:
    return sorted(alias for alias, target in ESTIMATORS.aliases().items() if target == name)


def list_records() -> list[dict[str, Any]]:
    """Return name, aliases, family, formula and source of every estimator, by family."""
    return [
        {
            "name": c.name,
            "aliases": _aliases(c.name),
            "family": c.family,
            "formula": c.formula,
            "source": f"{c.paper}, {c.equation}",
            "held": held(c),
            "released": list(c.released_options),
        }
        for c in sorted(ESTIMATORS.classes(), key=lambda c: (c.family, c.name))
    ]


def markdown_table() -> str:
    """Return the table of estimators of the documentation, in GitHub's Markdown."""
    rows = [
        [
            record["family"],
            ", ".join(f"`{name}`" for name in (record["name"], *record["aliases"])),
            record["formula"].replace("|", r"\|"),
            record["source"],
            record["held"] + "".join(f"; `{option}`" for option in record["released"]),
        ]
        for record in list_records()
    ]
    return to_markdown(("family", "name, aliases", "advantage", "source", "defaults"), rows)


# One estimator in full


def describe_estimator(estimator: Estimator) -> dict[str, Any]:
    """Return everything about an estimator that its page and `describe` print, in JSON types."""
    description, released, departures = _documentation(type(estimator))
    return {
        "name": estimator.name,
        "aliases": _aliases(estimator.name),
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
    """Split a docstring into description, note on the released code, and departures."""
    marked: dict[str, list[str]] = {"Released code: ": [], "Departures: ": []}
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
    """Compute the advantages of groups with equal rewards, each alone in its batch."""
    size = group_size_of(estimator, 4)
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
    """Describe the rewards that the formula is defined for."""
    if estimator.verifier_free:
        return "not read"
    others = group_size_of(estimator, 4) - 1
    if _applied(estimator, [1.5] + [2.0] * others)["refused"] is None:
        return "any finite numbers"
    if _applied(estimator, [0.5] + [0.9] * others)["refused"] is None:
        return "means of a group in [0, 1]"
    return "0 and 1 only"


def _applied(estimator: Estimator, row: list[float]) -> dict[str, Any]:
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
    size = group_size_of(estimator, 8)
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


def group_size_of(estimator: Estimator, least: int) -> int:
    """Return the smallest valid group size of at least `least` rollouts."""
    multiple = estimator.group_multiple
    return -(-max(least, estimator.minimum_group) // multiple) * multiple


def sizes(record: dict[str, Any]) -> str:
    """Return the group sizes that an estimator accepts, in words."""
    at_least = f"at least {record['minimum_group']}"
    multiple = record["group_multiple"]
    return at_least if multiple == 1 else f"{at_least}, a multiple of {multiple}"


def print_estimator(record: dict[str, Any]) -> None:
    """Print what `describe_estimator` returns."""
    also = f" (also {', '.join(record['aliases'])})" if record["aliases"] else ""
    echo(f"{record['name']}{also}: {record['formula']}")
    echo(f"family: {record['family']}    source: {record['paper']}, {record['equation']}")
    echo(f"defaults follow: {record['held']}")
    echo(f"\n{record['description']}\n")
    if record["released"]:
        ways = [" ".join(f"--set {o}" for o in way.split()) for way in record["released_options"]]
        chosen = f" ({', '.join(ways)})" if ways else ""
        echo(textwrap.fill(f"the authors' released code{chosen}: {record['released']}", 96) + "\n")
    echo(textwrap.fill(f"departures from the source: {record['departures']}", 96) + "\n")
    echo(f"needs: {', '.join(['rewards', *record['needs']])}")
    if record["uses"]:
        echo(f"reads if given: {', '.join(record['uses'])}")
    echo(f"rewards: {record['rewards']}")
    echo(f"group size: {sizes(record)}")
    if not record["exchangeable"]:
        echo("order: the order of the rollouts within a group matters")
    if record["stateful"]:
        start = ", ".join(f"{key} {_yaml(value)}" for key, value in record["memory"].items())
        echo(f"initial state: {start}")
    echo("")
    if record["parameters"]:
        columns = ("parameter", "type", "default", "range", "meaning")
        print_columns(columns, [[_yaml(v) for v in row.values()] for row in record["parameters"]])
    else:
        echo("no parameters")
    inputs = "".join(f", {name} {value:g}" for name, value in record["inputs"].items())
    echo(f"\ndegenerate groups, each alone in a first step{inputs}")
    print_columns(
        ("group", "rewards", "advantages"),
        [[row["group"], _numbers(row["rewards"]), _outcome(row)] for row in record["degenerate"]],
    )
    found = record["masses"]
    echo(f"\nexpected masses at group size {found['group_size']}{inputs}")
    if found["refused"]:
        echo(f"refused: {found['refused']}")
        return
    rates = [[show_number(value) for value in row.values()] for row in found["rates"]]
    print_columns(("p", "m_S", "m_F"), rates)


def _yaml(value: Any) -> str:
    words = {None: "null", True: "true", False: "false"}
    return words[value] if value is None or isinstance(value, bool) else str(value)


def _numbers(values: list[float]) -> str:
    return " ".join(show_number(value) for value in values)


def _outcome(row: dict[str, Any]) -> str:
    if row["refused"]:
        return f"refused: {row['refused']}"
    return _numbers(row["advantages"]) + ("" if row["kept"] else ", left out of the update")


# Applied to rewards


@dataclasses.dataclass(frozen=True)
class Applied:
    """What an estimator makes of a batch, with the masses of each group."""

    batch: GroupBatch
    advantages: Advantages
    masses: list[Masses]

    def record(self) -> dict[str, Any]:
        """Return everything in JSON types, to 12 digits: processors round the last differently."""
        found = {
            "rewards": self.batch.rewards.tolist(),
            "advantages": self.advantages.rollout_means(self.batch.lengths).tolist(),
            "keep": self.advantages.keep.tolist(),
            "masses": [{"success": m.success, "failure": m.failure} for m in self.masses],
            "info": self.advantages.info,
        }
        rounded: dict[str, Any] = _rounded(found)
        return rounded

    def rows(self) -> Iterator[dict[str, Any]]:
        """Yield group, rollout, reward (None if missing), advantage and keep of each rollout."""
        record, mask = self.record(), self.batch.mask
        for i, rewards in enumerate(record["rewards"]):
            for j, reward in enumerate(rewards):
                missing = mask is not None and not mask[i, j]
                yield {
                    "group": i + 1,
                    "rollout": j + 1,
                    "reward": None if missing else reward,
                    "advantage": record["advantages"][i][j],
                    "keep": record["keep"][i][j],
                }


def apply(estimator: Estimator, rewards: str, given: dict[str, Rows | int]) -> Applied:
    """Compute the advantages and masses of groups of rewards.

    Raises:
        BatchError: the rewards or an input do not fit.
    """
    check_inputs([estimator], given)
    rows = parse_rows(rewards, "--rewards")
    values = _tensor(rows)
    mask = None
    if any(reward is None for row in rows for reward in row):
        mask = torch.tensor([[reward is not None for reward in row] for row in rows])
    inputs: dict[str, Any] = {
        name: own if isinstance(own, int) else _input(name, _tensor(own), values)
        for name, own in given.items()
    }
    for name in PER_TOKEN & inputs.keys():
        tokens = math.ceil(inputs["lengths"].nan_to_num().max()) if "lengths" in inputs else 1
        inputs[name] = inputs[name][..., None].expand(-1, -1, tokens)
    batch = GroupBatch(rewards=values, mask=mask, **inputs)
    advantages = estimator.compute(batch)
    groups = Groups(batch)
    binary = ((groups.rewards == 0) | (groups.rewards == 1)).all()
    successes = groups.rewards == 1 if binary else groups.rewards >= groups.mean
    means = advantages.rollout_means(batch.lengths)
    found = [
        masses(means[i : i + 1], successes[i : i + 1], None if mask is None else mask[i : i + 1])
        for i in range(len(values))
    ]
    return Applied(batch, advantages, found)


def _tensor(rows: Rows) -> Tensor:
    filled = [[math.nan if cell is None else cell for cell in row] for row in rows]
    return torch.tensor(filled, dtype=torch.float64)


def _input(name: str, values: Tensor, rewards: Tensor) -> Tensor | tuple[str, ...]:
    """Convert an input to the shape that the batch expects; a single number is repeated."""
    if name in PER_PROMPT:
        if values.shape[1] != 1:
            raise BatchError(
                f"--input {name}: expected one number per group, separated by ;, got "
                f"{values.shape[1]} for a group"
            )
        column = values[:, 0].expand(len(rewards)) if len(values) == 1 else values[:, 0]
        return tuple(f"{i:g}" for i in column.tolist()) if name == "prompt_ids" else column
    whole = values.expand_as(rewards) if values.numel() == 1 else values
    if name != "answered":
        return whole
    if (invalid := whole[(whole != 0) & (whole != 1)]).numel():
        raise BatchError(f"--input answered: expected 1 or 0, got {invalid[0].item():g}")
    return whole == 1


def _rounded(value: Any) -> Any:
    if isinstance(value, float):
        return float(f"{value:.12g}")
    if isinstance(value, Mapping):
        return {key: _rounded(item) for key, item in value.items()}
    if isinstance(value, (list, tuple)):
        return [_rounded(item) for item in value]
    return value


def print_applied(applied: Applied) -> None:
    """Print advantages, the masses of each group, and what the estimator logs."""
    rows = list(applied.rows())
    dropped = not all(row["keep"] for row in rows if row["reward"] is not None)
    columns = ["group", "rollout", "reward", "advantage", *(["keep"] if dropped else [])]
    print_columns(columns, [[_cell(row[name]) for name in columns] for row in rows])
    echo("")
    pairs = [[str(i), *map(show_number, mass)] for i, mass in enumerate(applied.masses, start=1)]
    print_columns(("group", "m_S", "m_F"), pairs)
    if info := applied.advantages.info:
        echo("")
        print_columns(("logged", "value"), [[k, show_number(v)] for k, v in info.items()])


def _cell(value: Any) -> str:
    if isinstance(value, bool):
        return "yes" if value else "no"
    return "-" if value is None else show_number(value)


# Masses over the solve rate


def mass_curves(
    estimators: Mapping[str, Estimator], group_size: int, given: dict[str, float]
) -> tuple[list[dict[str, Any]], list[str]]:
    """Return a record per estimator and solve rate, and the inputs that were assumed.

    Raises:
        BatchError: an estimator reads no rewards, or an input or the group size does not fit.
    """
    for estimator in estimators.values():
        if estimator.verifier_free:
            raise BatchError(
                f"estimator '{estimator.name}' does not read rewards, so its masses do not "
                "depend on the solve rate; omit it"
            )
    assumed = sorted({n for e in estimators.values() for n in e.needs} - given.keys())
    given |= {name: NEUTRAL[name] for name in assumed}
    check_inputs(estimators.values(), given)
    records = []
    for label, estimator in estimators.items():
        own = {n: v for n, v in given.items() if n in estimator.needs | estimator.uses}
        for p in _CURVE:
            mass = expected_masses(estimator, p, group_size, **own)
            records.append(
                {
                    "estimator": label,
                    "group_size": group_size,
                    "p": p,
                    "m_S": mass.success,
                    "m_F": mass.failure,
                    "sum": mass.total,
                    "ratio": mass.ratio,
                }
            )
    return records, assumed
