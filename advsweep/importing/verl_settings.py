"""The settings of a run of verl, from the file that Hydra wrote of them."""

from __future__ import annotations

import functools
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from advsweep.errors import AdvsweepError
from advsweep.yaml_files import read_yaml

_TABLE = Path(__file__).with_suffix(".yaml")
_OURS = "advsweep"
"""The value of adv_estimator that names an estimator of ours in algorithm.advsweep."""


_OF_ESTIMATOR = (
    "algorithm.adv_estimator",
    "algorithm.norm_adv_by_std_in_grpo",
    f"algorithm.{_OURS}",
)


class Settings:
    """Settings of one run.

    Attributes:
        theirs: as the file has them; nothing in it is resolved.
        problem: why the file could not be used; empty if it could.
    """

    def __init__(self, path: Path | None) -> None:
        self.theirs: dict[str, Any] = {}
        self.problem = ""
        if path is None:
            return
        try:
            content = read_yaml(path)
        except (AdvsweepError, OSError) as error:
            self.problem = " ".join(str(error).split())
            return
        if isinstance(content, dict):
            self.theirs = {str(key): value for key, value in content.items()}
        else:
            self.problem = f"{path}: expected a mapping of settings"

    def get(self, key: str) -> Any:
        """Returns the value of a dotted key; None without one."""
        return _lookup(self.theirs, key)

    def config(self) -> dict[str, Any]:
        """Returns the config of the run: our keys, and those of theirs that have none of ours."""
        table = _table()
        config = {
            key: value
            for key, value in self.theirs.items()
            if key not in table["of_one_run"] and key not in _our_nodes(table)
        }
        translated = [*table["keys"].values(), *_OF_ESTIMATOR]
        config = _without(config, frozenset([*table["of_one_run"], *translated]))
        for ours, theirs in table["keys"].items():
            value = self.get(theirs)
            if _is_known(value):
                node, _, leaf = ours.rpartition(".")
                (config.setdefault(node, {}) if node else config)[leaf] = value
        if (estimator := self._estimator(table)) is not None:
            config["estimator"] = estimator
        return config

    @property
    def keeps_all_rollouts(self) -> bool:
        """Whether every generated rollout is trained on, and so logged and dumped."""
        return self.get("algorithm.filter_groups.enable") is not True

    def _estimator(self, table: Mapping[str, Any]) -> dict[str, Any] | None:
        name = self.get("algorithm.adv_estimator")
        if not isinstance(name, str):
            return None
        own = self.get(f"algorithm.{_OURS}")
        if name == _OURS and isinstance(own, dict) and isinstance(own.get("name"), str):
            return own
        known = table["estimators"].get(name, {})
        scaled = self.get("algorithm.norm_adv_by_std_in_grpo") is not False
        chosen = known.get("scaled") if scaled or "unscaled" not in known else known["unscaled"]
        # A name of theirs must not stand for an estimator of ours with other numbers.
        return dict(chosen) if chosen else {"name": f"verl_{name}"}


@functools.cache
def _table() -> dict[str, Any]:
    table: dict[str, Any] = read_yaml(_TABLE)
    return table


def _our_nodes(table: Mapping[str, Any]) -> set[str]:
    return {"estimator", "backend", "rows"} | {key.partition(".")[0] for key in table["keys"]}


def _lookup(node: Any, key: str) -> Any:
    for part in key.split("."):
        if not isinstance(node, Mapping) or part not in node:
            return None
        node = node[part]
    return node


def _is_known(value: Any) -> bool:
    """Whether a setting has a value: null and -1 stand for none, ${...} for one elsewhere."""
    if isinstance(value, str):
        return bool(value) and "${" not in value
    return isinstance(value, (int, float)) and not isinstance(value, bool) and value >= 0


def _without(node: Mapping[str, Any], keys: frozenset[str], above: str = "") -> dict[str, Any]:
    """Returns settings without some keys, seeds and names of classes."""
    return dict(_kept(node, keys, above))


def _kept(node: Mapping[Any, Any], keys: frozenset[str], above: str) -> Iterator[tuple[str, Any]]:
    for key, value in node.items():
        path = f"{above}{key}"
        if path in keys or key == "_target_" or str(key) == "seed" or str(key).endswith("_seed"):
            continue
        yield str(key), _without(value, keys, f"{path}.") if isinstance(value, Mapping) else value
