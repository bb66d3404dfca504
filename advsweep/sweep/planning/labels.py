"""Short labels that tell the runs of a plan apart."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

from advsweep.components import leaves
from advsweep.tasks.controls import titled

if TYPE_CHECKING:
    from advsweep.sweep.planning.plan import Plan


def labels(plan: Plan) -> dict[str, str]:
    """Return the label of each training by its identity, see `config_labels`."""
    configs = {p.run.identity: p.config for p in plan.runs}
    return dict(zip(configs, config_labels(configs.values()), strict=True))


def config_labels(configs: Iterable[Mapping[str, Any]]) -> list[str]:
    """Return a label for each resolved config, such as `fade seed=1 group_size=16`.

    A label has the estimator, the seed, and the keys that vary between runs of the same
    components. Between two estimators nearly every key varies, so such pairs do not count.
    """
    configs = list(configs)
    return [
        " ".join([titled(config["estimator"]["name"], config), f"seed={config['seed']}", *parts])
        for config, parts in zip(configs, varying_keys(configs), strict=True)
    ]


def varying_keys(configs: Iterable[Mapping[str, Any]]) -> list[list[str]]:
    """Return what tells each config apart beside estimator and seed, such as `group_size=16`."""
    configs = list(configs)
    flattened = _Flattened()
    values: dict[tuple[str, ...], dict[str, set[str]]] = {}
    seen: dict[tuple[str, ...], set[int]] = {}
    for config in configs:
        nodes = flattened.nodes(config)
        kinds = tuple(name for node in nodes for name in node.names)
        group, known = values.setdefault(kinds, {}), seen.setdefault(kinds, set())
        for node in nodes:
            # Runs of a plan share equal nodes, so most of them have been seen before.
            if id(node) not in known:
                known.add(id(node))
                for key, value in node.leaves:
                    group.setdefault(key, set()).add(value)
    vary = {key for group in values.values() for key, found in group.items() if len(found) > 1}
    vary |= {key for key in _names(values) if key != "estimator.name"}
    vary -= {"seed", "control.name"}  # labels have both anyway
    return [_varying(flattened.nodes(config), vary) for config in configs]


class _Node(NamedTuple):
    """One key of a config, flattened: dotted keys with values, and the names of components."""

    leaves: Sequence[tuple[str, str]]
    names: Sequence[str]


class _Flattened:
    """Flattens the nodes of configs; a node that configs share is flattened once.

    It knows nodes by their `id`, so the configs must stay alive and unchanged meanwhile.
    """

    def __init__(self) -> None:
        self._nodes: dict[tuple[str, Any], _Node] = {}

    def nodes(self, config: Mapping[str, Any]) -> list[_Node]:
        return [self._node(key, value) for key, value in config.items()]

    def _node(self, key: str, value: Any) -> _Node:
        mark = (key, id(value) if isinstance(value, Mapping) else str(value))
        if mark not in self._nodes:
            found = [(name, str(own)) for name, own in leaves({key: value})]
            names = [text for name, text in found if name.endswith(".name")]
            self._nodes[mark] = _Node(found, names)
        return self._nodes[mark]


def _names(values: Mapping[tuple[str, ...], Mapping[str, set[str]]]) -> set[str]:
    """Return the keys of components that differ between runs."""
    seen: dict[str, set[str]] = {}
    for group in values.values():
        for key, found in group.items():
            if key.endswith(".name"):
                seen.setdefault(key, set()).update(found)
    return {key for key, found in seen.items() if len(found) > 1}


def _varying(nodes: Iterable[_Node], vary: set[str]) -> list[str]:
    found = (leaf for node in nodes for leaf in node.leaves)
    return [f"{k.removesuffix('.name')}={v}" for k, v in found if k in vary]
