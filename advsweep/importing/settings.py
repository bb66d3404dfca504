"""The settings of an imported run: what its files say, and what the command says."""

from __future__ import annotations

import hashlib
import json
import math
import re
from collections.abc import Mapping, Sequence
from pathlib import PurePath
from typing import Any

from advsweep.errors import ConfigError
from advsweep.printable import printable_line
from advsweep.redaction import MASK, redacted
from advsweep.store.imported import IMPORTED, ROWS, setting_leaves

UNKNOWN = "unknown"
"""The estimator of a run whose files and command do not name one."""

MAX_DEPTH = 32
MAX_KEYS = 5_000
MAX_TEXT = 10_000

_ENDINGS = frozenset(
    {".csv", ".tsv", ".json", ".jsonl", ".ndjson", ".parquet", ".wandb", ".log", ".txt"}
)

# Names of secrets, but not prompt_key, pad_token and the like, which settings are full of.
_SECRET = re.compile(
    r"(?:.*[_.-])?(?:(?:api|access|secret|private|auth|hub|hf|wandb)[_-]?(?:key|token)s?"
    r"|passw(?:or)?d|passphrase|secret|credentials?)|token",
    re.IGNORECASE,
)
_NAME = re.compile(r"[a-z0-9_]{1,64}")
_FIELD = re.compile(r"\{([A-Za-z_][\w.]*)\}")
_KEY = re.compile(r"[A-Za-z_][\w.\-/]*")


def parse_value(text: str) -> Any:
    """Returns the value of a setting that was written as a text: JSON, or else the text itself.

    >>> [parse_value(text) for text in ("0.5", "grpo", "true", "[1, 2]", "1e-6")]
    [0.5, 'grpo', True, [1, 2], 1e-06]
    """
    try:
        value = json.loads(text)
    except (ValueError, RecursionError):
        return text
    # Infinities have no place in JSON.
    return text if isinstance(value, float) and not math.isfinite(value) else value


def parse_settings(assignments: Sequence[str], option: str = "--set") -> dict[str, Any]:
    """Returns nested settings of assignments such as `estimator.delta=0.5`.

    Raises:
        ConfigError: an assignment has no `=`, or its key no letters.
    """
    settings: dict[str, Any] = {}
    for assignment in assignments:
        key, equals, text = assignment.partition("=")
        if not equals or not _KEY.fullmatch(key):
            raise ConfigError(f"{option}: expected KEY=VALUE, got {assignment!r}")
        assign(settings, key, parse_value(text))
    return settings


def assign(settings: dict[str, Any], key: str, value: Any) -> None:
    """Sets a dotted key; a text on the way, such as an estimator's name, becomes its `name`."""
    *above, last = key.split(".")
    node = settings
    for part in above:
        inner = node.get(part)
        if not isinstance(inner, dict):
            inner = {} if inner is None else {"name": inner}
        # A copy, since nodes may be shared with what a file says.
        node[part] = inner = dict(inner)
        node = inner
    if isinstance(node.get(last), dict) and not isinstance(value, dict):
        node[last] = {**node[last], "name": value}
    else:
        node[last] = value


class NamePattern:
    """A pattern over the names of folders or files, such as `{estimator}-s{seed}`.

    Raises:
        ConfigError: the pattern has no field.
    """

    def __init__(self, text: str) -> None:
        self.text = text
        self._keys: list[str] = []
        expression, place = "", 0
        for match in _FIELD.finditer(text):
            self._keys.append(match[1])
            expression += re.escape(text[place : match.start()]) + "([^/]+?)"
            place = match.end()
        if not self._keys or len(set(self._keys)) < len(self._keys):
            raise ConfigError(
                "--name-pattern: expected different fields in braces, such as "
                f"'{{estimator}}-s{{seed}}', got {text!r}"
            )
        self._expression = re.compile(expression + re.escape(text[place:]))
        self._depth = text.count("/") + 1

    def settings(self, source: str) -> dict[str, Any] | None:
        """Returns the settings in a path; None if no part of it matches. The last part wins."""
        parts = PurePath(source).parts
        for end in range(len(parts), self._depth - 1, -1):
            *above, last = parts[end - self._depth : end]
            for name in dict.fromkeys((last.removesuffix(_ending(last)), last)):
                if match := self._expression.fullmatch("/".join([*above, name])):
                    settings: dict[str, Any] = {}
                    for key, text in zip(self._keys, match.groups(), strict=True):
                        assign(settings, key, parse_value(text))
                    return settings
        return None


def _ending(name: str) -> str:
    """Returns the ending of a log's name; a dot may also belong to a setting, as in `lr0.5`."""
    ending = PurePath(name).suffix
    return ending if ending in _ENDINGS else ""


def merged(config: Mapping[str, Any], settings: Mapping[str, Any]) -> dict[str, Any]:
    """Returns a config with other settings in it, node by node.

    A name that a node has already leaves the node as it is, with its options.
    """
    result = dict(config)
    for key, value in settings.items():
        old = result.get(key)
        if isinstance(value, str) and isinstance(old, Mapping) and old.get("name") == value:
            continue
        if isinstance(value, Mapping):
            base = old if isinstance(old, Mapping) else {} if old is None else {"name": old}
            result[key] = merged(base, value)
        else:
            result[key] = value
    return result


def plain(value: Any, depth: int = 0) -> Any:
    """Returns a value of a foreign file as every store accepts it: bounded plain JSON.

    Control characters of texts are escaped, since keys and values are shown. Texts whose key
    names a secret, and passwords in URLs, are masked.
    """
    if isinstance(value, Mapping) and depth < MAX_DEPTH:
        items = [(str(key)[:MAX_TEXT], item) for key, item in list(value.items())[:MAX_KEYS]]
        return {
            printable_line(key): MASK
            if isinstance(item, str) and item and _SECRET.fullmatch(key)
            else plain(item, depth + 1)
            for key, item in items
        }
    if isinstance(value, (list, tuple)) and depth < MAX_DEPTH:
        return [plain(v, depth + 1) for v in value[:MAX_KEYS]]
    if isinstance(value, float) and not math.isfinite(value):
        return None if math.isnan(value) else "inf" if value > 0 else "-inf"
    if isinstance(value, int) and not isinstance(value, bool) and abs(value) >= 2**63:
        return float(value) if abs(value) < 10**300 else None
    if value is None or isinstance(value, (bool, int, float)):
        return value
    text = str(value)[:MAX_TEXT]
    return printable_line(redacted(text) if "://" in text else text)


def estimator_node(value: Any) -> dict[str, Any]:
    """Returns the config node of an estimator of any form.

    The name is made of lower-case letters, digits and underscores, as a store demands.
    """
    node = dict(value) if isinstance(value, Mapping) else {"name": value}
    name = re.sub(r"[^a-z0-9_]+", "_", str(node.get("name") or UNKNOWN).lower()).strip("_")[:64]
    return {"name": name if _NAME.fullmatch(name) else UNKNOWN, **_without(node, "name")}


def _without(node: Mapping[str, Any], key: str) -> dict[str, Any]:
    return {k: v for k, v in node.items() if k != key}


def config_hash(config: Mapping[str, Any]) -> str:
    """Returns the hash of what tells settings apart; runs that share it are replicates."""
    form = config["backend"].get("format")
    content = json.dumps([form, *sorted(setting_leaves(config))], sort_keys=True, default=str)
    return hashlib.sha256(content.encode()).hexdigest()


def seed_of(config: Mapping[str, Any]) -> int | None:
    """Returns the seed of a config; None if it has none that is a whole number from 0."""
    value = config.get("seed")
    if isinstance(value, str) and value.isascii() and value.isdigit() and len(value) <= 18:
        value = int(value)
    if isinstance(value, float) and value.is_integer():
        value = int(value)
    if isinstance(value, bool) or not isinstance(value, int) or not 0 <= value < 2**63:
        return None
    return value


_COMPONENTS = ("task", "model", "objective", "rollout", "optimizer", "generation", "evaluation")
_COUNTS = ("group_size", "prompts_per_step", "steps")


def stored_config(
    theirs: Mapping[str, Any], *, form: str, rows: Sequence[str] | None, seed: int | None = None
) -> dict[str, Any]:
    """Returns the config of an imported run, as `advsweep.store.imported` describes it.

    Args:
        theirs: what the files and the command say.
        form: the name of the format.
        rows: the keys that alone tell settings apart; None for those of the config, or for all.
        seed: the seed, if it is known already.
    """
    config = plain(theirs)
    chosen = list(rows) if rows is not None else config.get(ROWS)
    estimator, backend = config.pop("estimator", None), config.pop("backend", None)
    for key in (ROWS, "seed"):
        config.pop(key, None)
    for key in _COMPONENTS:
        # Reports read the names of these nodes.
        if key in config and not isinstance(config[key], dict):
            config[key] = {"name": config[key]}
    for key in _COUNTS:
        value = config.get(key)
        if key in config and (isinstance(value, bool) or not isinstance(value, int) or value < 1):
            config[f"their_{key}"] = config.pop(key)
    result: dict[str, Any] = {"backend": {"name": IMPORTED, "format": form}}
    if backend is not None:
        result["their_backend"] = backend
    result |= {"estimator": estimator_node(estimator), **config}
    if isinstance(chosen, list) and chosen:
        result[ROWS] = [str(key) for key in chosen]
    # The seed comes last: configs that are equal up to there are parsed once.
    return result if seed is None else {**result, "seed": seed}
