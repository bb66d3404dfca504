"""Parse the text arguments of the estimator commands: options, rewards and other inputs."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING, Any

from advsweep.errors import BatchError, ConfigError, nearest

if TYPE_CHECKING:
    from advsweep.estimators import Estimator

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


def build_from_options(name: str, texts: Sequence[str]) -> Estimator:
    """Builds an estimator from its name and `FIELD=VALUE` options in Hydra's grammar.

    Raises:
        ConfigError: the name, an option or its value is invalid.
    """
    from advsweep.config.overrides import parse_overrides
    from advsweep.estimators import ESTIMATORS, build_estimator

    for text in texts:
        if "=" not in text:
            raise ConfigError(f"'{text}': expected FIELD=VALUE, such as delta=0.5")
    values: dict[str, Any] = {}
    for override in parse_overrides(texts):
        if override.swept or override.deleted:
            raise ConfigError(f"{override.text}: expected FIELD=VALUE with one value")
        *path, last = override.key.split(".")
        node = values
        for part in path:
            node[part] = node = _mapping(node.get(part, _default(ESTIMATORS.get(name), part)))
        node[last] = override.values[0]
    return build_estimator(name, **values)


def _default(cls: type[Estimator], field: str) -> Any:
    from advsweep.components import parameters

    return next((p["default"] for p in parameters(cls) if p["name"] == field), None)


def _mapping(value: Any) -> dict[str, Any]:
    """Returns `base` as a mapping that `base.FIELD=VALUE` can update; it may be a name or unset."""
    return {"name": value} if isinstance(value, str) else dict(value or {})


def parse_rows(text: str, where: str) -> Rows:
    """Parses groups of numbers, `1,0,0,1;0,0,0,1`, where `-` marks a missing rollout.

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


def parse_inputs(texts: Sequence[str]) -> dict[str, Rows | int]:
    """The other inputs, `NAME=VALUES`, by name; steps are whole numbers, the rest rows.

    Raises:
        BatchError: an unknown name, or values that are no such numbers.
    """
    from advsweep.estimators.batch import COUNTERS, GroupBatch

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


def check_inputs(estimators: Iterable[Estimator], given: Iterable[str]) -> None:
    """Checks that every needed input is given and that every given input is read.

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
