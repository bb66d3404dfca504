"""What tells the runs of a plan from each other, in a few words."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from advsweep.sweep.plan import Plan


def labels(plan: Plan) -> dict[str, str]:
    """Each training's label by its identity, as `config_labels` has it."""
    configs = {p.run.identity: p.config for p in plan.runs}
    return dict(zip(configs, config_labels(configs.values()), strict=True))


def config_labels(configs: Iterable[Mapping[str, Any]]) -> list[str]:
    """A label for each resolved config, such as `fade seed=1 group_size=16`.

    Besides estimator and seed it has the keys that vary between runs of the same components:
    between two estimators nearly every key does.
    """
    leaves = [dict(_leaves(config)) for config in configs]
    values: dict[tuple[Any, ...], dict[str, set[str]]] = {}
    for config in leaves:
        kinds = tuple(v for k, v in config.items() if k.endswith(".name"))
        for key, value in config.items():
            values.setdefault(kinds, {}).setdefault(key, set()).add(value)
    vary = {key for group in values.values() for key, seen in group.items() if len(seen) > 1}
    vary |= {key for key in _names(values) if key != "estimator.name"}
    vary -= {"seed"}
    return [_label(config, vary) for config in leaves]


def _names(values: Mapping[tuple[Any, ...], Mapping[str, set[str]]]) -> set[str]:
    """Nodes whose component is not the same for all runs."""
    seen: dict[str, set[str]] = {}
    for group in values.values():
        for key, found in group.items():
            if key.endswith(".name"):
                seen.setdefault(key, set()).update(found)
    return {key for key, found in seen.items() if len(found) > 1}


def _label(config: Mapping[str, str], vary: set[str]) -> str:
    parts = [config["estimator.name"], f"seed={config['seed']}"]
    parts += [f"{k.removesuffix('.name')}={v}" for k, v in config.items() if k in vary]
    return " ".join(parts)


def _leaves(node: Mapping[str, Any], prefix: str = "") -> Iterator[tuple[str, str]]:
    for key, value in node.items():
        if isinstance(value, Mapping):
            yield from _leaves(value, f"{prefix}{key}.")
        else:
            yield f"{prefix}{key}", str(value)
