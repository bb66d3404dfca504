"""Estimators on the command line: parse options and inputs, describe, apply, and find masses."""

from __future__ import annotations

import copy
import dataclasses
import inspect
import math
import textwrap
from collections.abc import Callable, Iterable, Mapping, Sequence
from types import MappingProxyType
from typing import Any, TypeVar

import torch
from torch import Tensor

from advsweep.bounds import LARGEST, is_bounded
from advsweep.brackets import split_outside_brackets
from advsweep.cli.catalogue import held
from advsweep.cli.episodes import describe_episodes, print_episodes
from advsweep.cli.output import (
    echo,
    print_code,
    print_columns,
    print_listing,
    print_pairs,
    show_number,
)
from advsweep.components import Component, parameters
from advsweep.config.groups import with_registered_name
from advsweep.config.overrides import parse_assignments
from advsweep.diagnostics import expected_masses, masses
from advsweep.errors import BatchError, ConfigError, nearest
from advsweep.estimators import ESTIMATORS, Estimator, named_checks
from advsweep.estimators.batch import (
    COUNTERS,
    NEUTRAL_INPUTS,
    PER_PART,
    PER_PROMPT,
    PER_TOKEN,
    PER_TURN,
    GroupBatch,
    Groups,
    spread_input,
)
from advsweep.estimators.contract import fitting_size
from advsweep.named_code import split_word
from advsweep.objectives import functions
from advsweep.objectives.base import Objective
from advsweep.registry import Registry
from advsweep.sweep.registry import PARTS

C = TypeVar("C", bound=Component)

# Groups of numbers, [groups, rollouts]; NaN marks a missing rollout.
Rows = Tensor

_RATES = (0.1, 0.3, 0.5, 0.8)
_CURVE = tuple(percent / 100 for percent in range(1, 100))


# Arguments


def split(text: str, separators: str) -> list[str]:
    """Split at separators outside brackets and drop empty parts."""
    parts = [part.strip() for part in split_outside_brackets(text, separators)]
    return [part for part in parts if part]


def build_named(
    registry: Registry[C],
    texts: Iterable[str],
    fields: Sequence[str] = (),
    preset: Callable[[str], Mapping[str, Any]] = lambda _: {},
) -> dict[str, C]:
    """Return components by label, from names with options after colons: `power_alpha:alpha=3`.

    Args:
        fields: further `FIELD=VALUE` options of each.
        preset: returns what a name's own file sets.

    Raises:
        ConfigError: there is none, or a name, an option or its value is invalid.
    """
    built = {}
    for spec in dict.fromkeys(part for text in texts for part in split(text, ", ")):
        word, attached = split_word(spec)
        name = registry.resolve(word)
        component = build_from_options(registry, name, [*attached, *fields], preset(name))
        code = component.named_code
        if isinstance(component, Estimator):
            named_checks.check_named(component)
        elif isinstance(component, Objective):
            functions.check_named(component)
        label = name if code is None else code.label
        built[" ".join((label, *attached))] = component
    if not built:
        raise ConfigError(f"expected at least one {registry.kind}, got none")
    return built


def build_from_options(
    registry: Registry[C],
    name: str,
    texts: Sequence[str],
    preset: Mapping[str, Any] = MappingProxyType({}),
) -> C:
    """Build a component from its name and `FIELD=VALUE` options in Hydra's grammar.

    The options are words of the command line: a component in it may be named by its file.

    Raises:
        ConfigError: the name, an option or its value is invalid.
    """
    values = {"name": name, **preset}
    for key, assigned in parse_assignments(texts).items():
        *path, last = key.split(".")
        node = values
        for part in path:
            # `base.FIELD=VALUE` updates the default base, which may be a name or unset.
            defaults = {p["name"]: p["default"] for p in parameters(registry.get(values["name"]))}
            value = node.get(part, defaults.get(part))
            node[part] = {"name": value} if isinstance(value, str) else dict(value or {})
            node = node[part]
        inner = PARTS.get(f"{registry.kind}.{key}".removesuffix(".name"))
        node[last] = assigned if inner is None else with_registered_name(inner, assigned)
    return registry.build(values)


def parse_rows(text: str, where: str) -> Rows:
    """Parse groups of numbers, `1,0,0,1;0,0,0,1`, where `-` marks a missing rollout.

    Raises:
        BatchError: a cell is empty or not a number, or the groups differ in length.
    """
    try:
        rows = [
            [math.nan if cell.strip() == "-" else float(cell) for cell in row.split(",")]
            for row in text.split(";")
        ]
    except ValueError as error:
        what = f"expected numbers such as 1,0,0,1, groups separated by ;, got '{text}'"
        raise BatchError(f"{where}: {what}") from error
    beyond = [x for row in rows for x in row if not (is_bounded(x) or math.isnan(x))]
    if beyond:
        raise BatchError(
            f"{where}: expected numbers below {LARGEST:g} in absolute value, got {beyond[0]:g}"
        )
    if len({len(row) for row in rows}) > 1:
        raise BatchError(
            f"{where}: expected groups of the same length, got "
            f"{', '.join(str(len(row)) for row in rows)}; write - for a missing rollout"
        )
    return torch.tensor(rows, dtype=torch.float64)


def parse_inputs(texts: Iterable[str]) -> dict[str, Rows]:
    """Return the other inputs, `NAME=VALUES`, by name.

    Raises:
        BatchError: an unknown name, or values that are no such numbers.
    """
    # Each rollout is one turn here.
    not_inputs = {"rewards", "mask", "frequencies", "part_weights", "turn_of_token"}
    names = [f.name for f in dataclasses.fields(GroupBatch) if f.name not in not_inputs]
    inputs = {}
    for text in texts:
        name, _, values = (part.strip() for part in text.partition("="))
        if name not in names:
            raise BatchError(f"--input: expected NAME=VALUES, got '{text}'; {nearest(name, names)}")
        inputs[name] = parse_rows(values, f"--input {name}")
        if name in COUNTERS and not (values.isdecimal() and int(values) > 0):
            raise BatchError(f"--input {name}: expected a whole number >= 1, got '{values}'")
    return inputs


def single_numbers(inputs: Mapping[str, Rows]) -> dict[str, float]:
    """Return inputs that are one number for all rollouts.

    Raises:
        BatchError: an input has several.
    """
    for name, rows in inputs.items():
        if rows.numel() != 1 or rows.isnan():
            raise BatchError(f"--input {name}: expected one number for all, got {rows.tolist()}")
    return {n: int(r) if n in COUNTERS else float(r) for n, r in inputs.items()}


def refuse_unread(estimators: Iterable[Estimator], names: Iterable[str]) -> None:
    """Refuse inputs that no estimator reads."""
    read = {name for estimator in estimators for name in estimator.needs | estimator.uses}
    for name in sorted({*names} - read):
        raise BatchError(f"--input {name}: no estimator given reads it; omit it")


# One estimator in full


def describe_estimator(estimator: Estimator) -> dict[str, Any]:
    """Return everything about an estimator that its page and `describe` print, in JSON types."""
    smallest = {"all wrong": 0.0, "all correct": 1.0, "all 0.9": 0.9}
    groups = {name: [reward] * fitting_size(estimator, 4) for name, reward in smallest.items()}
    groups |= {"one rollout, wrong": [0.0], "one rollout, correct": [1.0]}
    inputs = {n: v for n, v in NEUTRAL_INPUTS.items() if n in estimator.needs}
    code = estimator.named_code
    attributes = (
        "family",
        "formula",
        "paper",
        "equation",
        "minimum_group",
        "group_multiple",
    )
    return {
        "name": estimator.name if code is None else code.label,
        **{key: getattr(estimator, key) for key in (*attributes, "exchangeable", "stateful")},
        "aliases": ESTIMATORS.aliases_of(estimator.name),
        "held": held(type(estimator)),
        "description": inspect.getdoc(type(estimator)) or "",
        "released": estimator.released_code or None,
        "released_options": list(estimator.released_options),
        "departures": estimator.departures,
        "needs": sorted(estimator.needs),
        "uses": sorted(estimator.uses),
        "rewards": _accepted_rewards(estimator),
        "memory": estimator.state_dict(),
        "parameters": parameters(type(estimator)),
        "options": estimator.plain(),
        "inputs": inputs,
        "degenerate": [
            {"group": name, "rewards": row, **_applied(estimator, row)}
            for name, row in groups.items()
        ],
        "masses": _masses_over_rates(estimator, inputs),
        "episodes": describe_episodes(estimator),
        "code": None if code is None else code.text,
        "place": None if code is None else code.where,
    }


def _accepted_rewards(estimator: Estimator) -> str:
    """Say which rewards the formula is defined for, by trying some."""
    if estimator.verifier_free:
        return "not read"
    others = fitting_size(estimator, 4) - 1
    if _applied(estimator, [1.5] + [2.0] * others)["refused"] is None:
        return "any finite numbers"
    if _applied(estimator, [0.5] + [0.9] * others)["refused"] is None:
        return "means of a group in [0, 1]"
    return "0 and 1 only"


def _masses_over_rates(estimator: Estimator, inputs: Mapping[str, float]) -> dict[str, Any]:
    """Return the expected masses at some solve rates, or why the estimator refuses them."""
    size = fitting_size(estimator, 8)
    rates = []
    try:
        for p in _RATES:
            mass = expected_masses(estimator, p, size, **inputs)
            rates.append({"p": p, "success": mass.success, "failure": mass.failure})
    except BatchError as error:
        return {"group_size": size, "refused": str(error), "rates": []}
    return {"group_size": size, "refused": None, "rates": rates}


def _applied(estimator: Estimator, row: list[float]) -> dict[str, Any]:
    """Compute the advantages of a group that is alone in its batch, with neutral inputs."""
    rewards = torch.tensor([row], dtype=torch.float64)
    inputs: dict[str, Any] = {
        name: spread_input(name, NEUTRAL_INPUTS[name], rewards) for name in estimator.needs
    }
    try:
        batch = GroupBatch(rewards=rewards, **inputs)
        computed = copy.deepcopy(estimator).compute(batch)
    except BatchError as error:
        return {"advantages": None, "kept": None, "refused": str(error)}
    advantages = computed.rollout_means(batch.lengths)[0].tolist()
    return {"advantages": advantages, "kept": bool(computed.keep.all()), "refused": None}


def facts(record: Mapping[str, Any]) -> dict[str, str]:
    """Return the properties of an estimator as `describe` and its page show them."""
    multiple = record["group_multiple"]
    sizes = f"at least {record['minimum_group']}"
    memory = (f"{key} {_yaml(value)}" for key, value in record["memory"].items())
    return {
        "family": record["family"],
        "source": f"{record['paper']}, {record['equation']}",
        "defaults follow": record["held"],
        "needs": ", ".join(["rewards", *record["needs"]]),
        "reads if given": ", ".join(record["uses"]) or "nothing else",
        "rewards": record["rewards"],
        "group size": sizes if multiple == 1 else f"{sizes}, a multiple of {multiple}",
        "order of the rollouts": "does not matter" if record["exchangeable"] else "matters",
        "initial state": ", ".join(memory) or "none",
    }


def print_estimator(record: dict[str, Any]) -> None:
    """Print what `describe_estimator` returns."""
    also = f" (also {', '.join(record['aliases'])})" if record["aliases"] else ""
    echo(f"{record['name']}{also}: {record['formula']}\n\n{record['description']}\n")
    if record["released"]:
        ways = [" ".join(f"--set {o}" for o in way.split()) for way in record["released_options"]]
        chosen = f" ({', '.join(ways)})" if ways else ""
        echo(textwrap.fill(f"the authors' released code{chosen}: {record['released']}", 96) + "\n")
    echo(textwrap.fill(f"departures from the source: {record['departures']}", 96) + "\n")
    print_pairs(facts(record))
    echo("")
    print_parameters(record["parameters"])
    inputs = "".join(f", {name} {value:g}" for name, value in record["inputs"].items())
    echo(f"\ndegenerate groups, each alone in a first step{inputs}")
    _print_degenerate(record["degenerate"])
    if record["episodes"]:
        print_episodes(record["episodes"])
    echo(f"\nexpected masses at group size {record['masses']['group_size']}{inputs}")
    _print_masses(record["masses"])
    if record["code"]:
        print_code(record["place"], record["code"])


def _print_degenerate(groups: Iterable[Mapping[str, Any]]) -> None:
    rows = []
    for group in groups:
        outcome = f"refused: {group['refused']}"
        if group["advantages"] is not None:
            left = "" if group["kept"] else ", left out of the update"
            outcome = " ".join(map(show_number, group["advantages"])) + left
        rows.append([group["group"], " ".join(map(show_number, group["rewards"])), outcome])
    print_columns(("group", "rewards", "advantages"), rows)


def _print_masses(expected: Mapping[str, Any]) -> None:
    if expected["refused"]:
        echo(f"refused: {expected['refused']}")
        return
    rates = [[show_number(value) for value in row.values()] for row in expected["rates"]]
    print_columns(("p", "m_S", "m_F"), rates)


def print_parameters(rows: Sequence[Mapping[str, Any]]) -> None:
    """Print what `components.parameters` returns."""
    if rows:
        columns = ("parameter", "type", "default", "range", "meaning")
        print_columns(columns, [[_yaml(v) for v in row.values()] for row in rows])


def _yaml(value: Any) -> str:
    words = {None: "null", True: "true", False: "false"}
    return words[value] if value is None or isinstance(value, bool) else str(value)


# Applied to rewards


def apply(estimator: Estimator, text: str, rows_by_name: Mapping[str, Rows]) -> dict[str, Any]:
    """Compute the advantages of groups of rewards, and the masses of each group.

    Returns:
        Everything in JSON types, to 12 digits, as processors round the last ones differently.

    Raises:
        BatchError: the rewards or an input do not fit.
    """
    refuse_unread([estimator], rows_by_name)
    for name in sorted(estimator.needs.difference(rows_by_name)):
        raise BatchError(
            f"estimator '{estimator.name}' needs {name}; give it with --input {name}=..."
        )
    rewards = parse_rows(text, "--rewards")
    is_present = ~rewards.isnan()
    mask = None if is_present.all() else is_present
    inputs: dict[str, Any] = {
        name: int(rows) if name in COUNTERS else _input(name, rows, rewards)
        for name, rows in rows_by_name.items()
    }
    for name in PER_TOKEN & inputs.keys():
        tokens = math.ceil(inputs["lengths"].nan_to_num().max()) if "lengths" in inputs else 1
        inputs[name] = inputs[name][..., None].expand(-1, -1, tokens)
    if "turn_states" in inputs:
        inputs["turn_states"] = _whole_numbers("turn_states", inputs["turn_states"])
    for name in PER_TURN & inputs.keys():
        inputs[name] = inputs[name][..., None]
    batch = GroupBatch(rewards=rewards, mask=mask, **inputs)
    advantages = estimator.compute(batch)
    groups = Groups(batch)
    binary = ((groups.rewards == 0) | (groups.rewards == 1)).all()
    successes = groups.rewards == 1 if binary else groups.rewards >= groups.mean
    means = advantages.rollout_means(batch.lengths)
    group_masses = []
    for i in range(len(rewards)):
        group_mask = None if mask is None else mask[i : i + 1]
        mass = masses(means[i : i + 1], successes[i : i + 1], group_mask)
        group_masses.append({"success": mass.success, "failure": mass.failure})
    record: dict[str, Any] = _rounded(
        {
            "rewards": rewards.tolist(),
            "advantages": means.tolist(),
            "keep": advantages.keep.tolist(),
            "masses": group_masses,
            "info": advantages.info,
        }
    )
    return record


def rollout_rows(applied: Mapping[str, Any]) -> list[dict[str, Any]]:
    """Return group, rollout, reward (None if missing), advantage and keep of each rollout."""
    groups = zip(applied["rewards"], applied["advantages"], applied["keep"], strict=True)
    return [
        {"group": i, "rollout": j, "reward": reward, "advantage": advantage, "keep": keep}
        for i, group in enumerate(groups, 1)
        for j, (reward, advantage, keep) in enumerate(zip(*group, strict=True), 1)
    ]


def _input(name: str, rows: Rows, rewards: Tensor) -> Tensor | tuple[str, ...]:
    """Convert an input to the shape that the batch expects; a single number is repeated."""
    if name in PER_PROMPT and rows.shape[1] != 1:
        raise BatchError(
            f"--input {name}: expected one number per group, separated by ;, got "
            f"{rows.shape[1]} for a group"
        )
    shaped = rewards[:, :1] if name in PER_PROMPT else rewards
    whole = rows.expand_as(shaped) if rows.numel() == 1 else rows
    if name in PER_PROMPT:
        column = whole[:, 0]
        return tuple(f"{i:g}" for i in column.tolist()) if name == "prompt_ids" else column
    if name in PER_PART:
        # The rewards are the first part, the numbers given the second.
        return torch.stack((rewards, whole), dim=-1)
    if name != "answered":
        return whole
    if not ((whole == 0) | (whole == 1)).all():
        raise BatchError(f"--input answered: expected 1 or 0 for each rollout, got {rows.tolist()}")
    return whole == 1


def _whole_numbers(name: str, numbers: Tensor) -> Tensor:
    if not (numbers == numbers.round()).all():
        raise BatchError(f"--input {name}: expected whole numbers, got {numbers.tolist()}")
    return numbers.long()


def _rounded(value: Any) -> Any:
    if isinstance(value, float):
        return None if math.isnan(value) else float(f"{value:.12g}")
    if isinstance(value, Mapping):
        return {key: _rounded(item) for key, item in value.items()}
    if isinstance(value, (list, tuple)):
        return [_rounded(item) for item in value]
    return value


def print_applied(applied: Mapping[str, Any]) -> None:
    """Print advantages, the masses of each group, and what the estimator logs."""
    rows = rollout_rows(applied)
    for row in rows:
        row |= {name: show_number(row[name]) for name in ("reward", "advantage")}
    dropped = not all(row["keep"] for row in rows if row["reward"] != "-")
    shown = [{**row, "keep": "yes" if row["keep"] else "no"} for row in rows]
    print_listing(shown, "table", hidden=() if dropped else ("keep",))
    echo("")
    pairs = [[str(i), *map(show_number, m.values())] for i, m in enumerate(applied["masses"], 1)]
    print_columns(("group", "m_S", "m_F"), pairs)
    if info := applied["info"]:
        echo("")
        print_columns(("logged", "value"), [[k, show_number(v)] for k, v in info.items()])


# Masses over the solve rate


def mass_curves(
    estimators: Mapping[str, Estimator], group_size: int, inputs: dict[str, float]
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
    assumed = sorted({n for e in estimators.values() for n in e.needs} - inputs.keys())
    inputs |= {name: NEUTRAL_INPUTS[name] for name in assumed}
    refuse_unread(estimators.values(), inputs)
    records = []
    for label, estimator in estimators.items():
        of_estimator = {n: inputs[n] for n in inputs if n in estimator.needs | estimator.uses}
        for p in _CURVE:
            mass = expected_masses(estimator, p, group_size, **of_estimator)
            numbers = {"m_S": mass.success, "m_F": mass.failure}
            numbers |= {"sum": mass.total, "ratio": mass.ratio}
            records.append({"estimator": label, "group_size": group_size, "p": p, **numbers})
    return records, assumed
