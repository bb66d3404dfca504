"""Labels: how keys and rows are called in tables, figures, claims and the page.

The only place where the name of a row or an arm is made; that of a column is made by
`columns.parse_column`, from the label that its source has, and that of an axis by
`figures.axes.label_axis`. `report.words` says what a label means.
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from advsweep.report.data.keys import METHOD, key_order

# Headings of columns of a table that are no keys.
_HEADINGS = ("n", "rank", "column", "p")


def show_key(value: Any) -> str:
    """Format a config value: the items of a list, short numbers, `null`."""
    if isinstance(value, (list, tuple)):
        return "[" + ", ".join(show_key(item) for item in value) + "]"
    if value is None:
        return "null"
    if isinstance(value, bool):
        return str(value).lower()
    return f"{value:g}" if isinstance(value, float) else str(value)


def short_keys(keys: Iterable[str]) -> dict[str, str]:
    """Return the last part of each dotted key, or the key itself where others end the same."""
    last = {key: key.rpartition(".")[2] for key in keys}
    counts = Counter(last.values())
    return {key: part if counts[part] == 1 else key for key, part in last.items()}


def label_keys(keys: Sequence[str]) -> list[str]:
    """Return what tables and figures call keys: their last parts, `lr`, where these differ.

    The n of `evaluation.n` is the heading of another column.
    """
    short = short_keys(keys)
    return [key if short[key] in _HEADINGS else short[key] for key in keys]


def title_key(groups: Iterable[Mapping[str, Any]]) -> str:
    """Return the key whose value names a row first: its method, or its estimator."""
    return METHOD if all(METHOD in group for group in groups) else "estimator"


def name_group(group: Mapping[str, Any]) -> str:
    """Name a row in words, such as `grpo, group_size=8`; by its method if a preset names it."""
    title = title_key([group])
    parts = []
    for key, value in group.items():
        if key == title:
            parts.append(show_key(value))
        elif key != "estimator":
            parts.append(f"{key}={show_key(value)}")
    return ", ".join(parts)


def label_rows(groups: Sequence[Mapping[str, Any]]) -> tuple[list[str], list[str]]:
    """Return short labels that tell rows apart, and sentences on what they leave out.

    A label has the estimator, or the method that names the row, and the fewest keys that tell its
    rows apart, by the last part of their names. It leaves out a value that most rows with the key
    have.
    """
    title = title_key(groups)
    present = {key for group in groups for key in group}
    keys = sorted(present - {title, "estimator"}, key=key_order)
    chosen = _distinguishing(groups, title, keys)
    short = short_keys(chosen)
    common = {}
    for key in chosen:
        counts = Counter(show_key(group[key]) for group in groups if key in group)
        [(value, count)] = counts.most_common(1)
        if count > counts.total() / 2:
            common[key] = value
    labels = []
    for group in groups:
        values = {key: show_key(group[key]) for key in chosen if key in group}
        told = [f"{short[key]}={v}" for key, v in values.items() if v != common.get(key)]
        labels.append(f"{group[title]} {', '.join(told)}".strip())
    if len(set(labels)) < len(labels):
        # A row without a key would be taken for one with the common value.
        return list(map(name_group, groups)), []
    remarks = []
    if common:
        listed = ", ".join(f"{short[key]}={value}" for key, value in common.items())
        remarks.append(f"unless a label says otherwise, {listed}")
    if silent := [key for key in keys if key not in chosen]:
        remarks.append(f"rows differ in {', '.join(silent)} too")
    return labels, remarks


def _distinguishing(
    groups: Sequence[Mapping[str, Any]], title: str, keys: Sequence[str]
) -> list[str]:
    """Return keys by which rows of the same title differ, the most telling first."""
    chosen: list[str] = []

    def classes(by: Sequence[str]) -> int:
        parts = ([str(group[title]), *map(group.get, by)] for group in groups)
        return len({json.dumps(part) for part in parts})

    while classes(chosen) < len(groups):
        chosen.append(max(keys, key=lambda key: classes([*chosen, key])))
    return sorted(chosen, key=key_order)
