"""Labels of runs: what tells the runs of a sweep apart."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from advsweep.components import leaves
from advsweep.tasks.controls import titled


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
    """Return what tells each config apart besides estimator and seed, such as `group_size=16`."""
    configs = list(configs)
    # Runs of a plan share equal nodes: each is flattened once, known by its mark.
    marks = [[_mark(key, value) for key, value in config.items()] for config in configs]
    leaves_of: dict[_Mark, list[tuple[str, str]]] = {}
    for config, marks_of_config in zip(configs, marks, strict=True):
        for mark, (key, value) in zip(marks_of_config, config.items(), strict=True):
            if mark not in leaves_of:
                leaves_of[mark] = [(name, str(leaf)) for name, leaf in leaves({key: value})]
    vary = _varying(marks, leaves_of)
    texts = {
        mark: [f"{key.removesuffix('.name')}={value}" for key, value in flat if key in vary]
        for mark, flat in leaves_of.items()
    }
    return [[text for mark in each for text in texts[mark]] for each in marks]


# A key of a config, with what stands for its value: the `id` of a node, or a text.
_Mark = tuple[str, int | str]


def _mark(key: str, value: Any) -> _Mark:
    return key, id(value) if isinstance(value, Mapping) else str(value)


def _varying(
    marks: Sequence[Sequence[_Mark]], leaves_of: Mapping[_Mark, Sequence[tuple[str, str]]]
) -> set[str]:
    """Return the dotted keys of which runs of the same components have different values.

    Args:
        marks: what each config is made of.
        leaves_of: the dotted keys of each mark, with the texts of their values.
    """
    components_of = {
        mark: tuple((key, value) for key, value in flat if key.endswith(".name"))
        for mark, flat in leaves_of.items()
    }
    # Between two estimators nearly every key varies: only like runs are compared.
    groups: dict[tuple[str, ...], set[_Mark]] = {}
    for each in marks:
        components = [pair for mark in each for pair in components_of[mark]]
        group = groups.setdefault(tuple(value for _, value in components), set())
        group.update(each)
    vary = _with_several_values(components_of.values()) - {"estimator.name"}
    for group in groups.values():
        vary |= _with_several_values(leaves_of[mark] for mark in group)
    return vary - {"seed", "control.name"}  # labels have both anyway


def _with_several_values(listed: Iterable[Sequence[tuple[str, str]]]) -> set[str]:
    """Return the keys that have different values in lists of keys and values."""
    values_of: dict[str, set[str]] = defaultdict(set)
    for pairs in listed:
        for key, value in pairs:
            values_of[key].add(value)
    return {key for key, values in values_of.items() if len(values) > 1}
