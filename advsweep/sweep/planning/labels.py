"""Short labels that tell the runs of a plan apart."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING, Any

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
    # Runs of a plan share equal nodes: each is flattened once, known by its `id`.
    known: dict[tuple[str, Any], list[tuple[str, str]]] = {}

    def flat(config: Mapping[str, Any]) -> list[tuple[str, str]]:
        found = []
        for key, value in config.items():
            mark = key, id(value) if isinstance(value, Mapping) else str(value)
            if mark not in known:
                known[mark] = [(name, str(leaf)) for name, leaf in leaves({key: value})]
            found += known[mark]
        return found

    configs = list(configs)
    names: dict[str, set[str]] = {}
    groups: dict[tuple[str, ...], dict[str, set[str]]] = {}
    for config in configs:
        found = flat(config)
        components = [(key, value) for key, value in found if key.endswith(".name")]
        for key, value in components:
            names.setdefault(key, set()).add(value)
        # Between two estimators nearly every key varies: only like runs are compared.
        group = groups.setdefault(tuple(value for _, value in components), {})
        for key, value in found:
            group.setdefault(key, set()).add(value)
    vary = {key for group in groups.values() for key, values in group.items() if len(values) > 1}
    vary |= {key for key, values in names.items() if len(values) > 1 and key != "estimator.name"}
    vary -= {"seed", "control.name"}  # labels have both anyway
    return [
        [f"{key.removesuffix('.name')}={value}" for key, value in flat(config) if key in vary]
        for config in configs
    ]
