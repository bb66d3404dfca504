"""How rows look in figures: their colours, markers and labels."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Sequence
from typing import Any, NamedTuple

from advsweep.report.data.runs import Group, key_order, name_group, short_keys, show_key, title_key

# Okabe and Ito's colours, which any kind of colour vision distinguishes, without their yellow:
# it is too pale for lines on white. After them darker and duller ones, then black.
COLOURS = (
    *("#0072B2", "#D55E00", "#009E73", "#CC79A7", "#56B4E9", "#E69F00"),
    *("#882255", "#332288", "#8F8F1F", "#6B3F12", "#145A22", "#7F7F7F"),
    "#000000",
)
_PALETTE = COLOURS[:-1]
# Base models and models without a run are black.
BLACK = COLOURS[-1]
GREY = "#555555"

_MARKERS = ("o", "s", "^", "D", "v", "P", "<", ">", "d", "p", "h", "8")
_DASHES: tuple[tuple[float, ...], ...] = ((), (5, 1.8), (6, 1.6, 1.4, 1.6), (1.4, 1.4))
_FILLINGS = (None, "white", "#bbbbbb", "black")
# The largest number of rows in a figure that distinguishes rows.
MOST_STYLES = 2 * len(_PALETTE)


class RowStyle(NamedTuple):
    """The style of a row's lines and points.

    Attributes:
        variant: the index of its dashes and marker filling.
    """

    colour: str
    marker: str
    variant: int = 0

    @property
    def linestyle(self) -> Any:
        dashes = _DASHES[self.variant]
        return (0, dashes) if dashes else "-"

    @property
    def points(self) -> dict[str, Any]:
        """The properties of markers, for matplotlib's lines."""
        own = {"marker": self.marker, "color": self.colour}
        if self.colour == BLACK:
            return own
        if self.variant == 0:
            return {**own, "markeredgecolor": "white", "markeredgewidth": 0.5}
        return {**own, "markerfacecolor": _FILLINGS[self.variant]}


# Styles of base models and models without a run, in this order.
UNTRAINED = (
    RowStyle(BLACK, "X", 3),
    RowStyle(BLACK, "*", 1),
    RowStyle(BLACK, "X", 2),
    RowStyle(BLACK, "*", 0),
)


def choose_styles(rows: Sequence[str], estimators: Sequence[str]) -> list[RowStyle]:
    """Choose a style for each row: colour and marker by estimator, shade and dashes by variant.

    If all rows have the same estimator, each gets a colour.

    Args:
        rows: the estimator of each row.
        estimators: all estimators in a fixed order. With those of a whole sweep, an estimator has
            the same colour in figures of any of the sweep's runs.
    """
    places = {name: place for place, name in enumerate(estimators)}
    variants: dict[int, int] = {}
    styles = []
    for number, estimator in enumerate(rows):
        place = places[estimator] if len(places) > 1 else number
        place, cycle = place % len(_PALETTE), place // len(_PALETTE)
        variant = variants.get(place, 0)
        variants[place] = variant + 1
        colour = _shade(_PALETTE[place], variant + cycle)
        # The second half of the colours has other dashes, for print in grey.
        dashes = variant + cycle + 2 * (place >= len(_PALETTE) // 2)
        styles.append(RowStyle(colour, _MARKERS[place], dashes % len(_DASHES)))
    return styles


def _shade(colour: str, variant: int) -> str:
    """Return a lighter or a darker shade of a colour for each variant but the first."""
    if variant == 0:
        return colour
    parts = [int(colour[start : start + 2], 16) / 255 for start in (1, 3, 5)]
    own = (min(parts) + max(parts)) / 2
    # Of the four shades the one that is most like the colour itself is left out.
    shades = sorted((0.25, 0.38, 0.52, 0.66), key=lambda shade: -abs(shade - own))[:3]
    shade = shades[(variant - 1) % 3]
    paint = float(shade > own)  # white or black
    share = (shade - own) / (paint - own)
    return "#" + "".join(f"{round(255 * (p + share * (paint - p))):02X}" for p in parts)


def label_rows(groups: Sequence[Group]) -> tuple[list[str], list[str]]:
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


def _distinguishing(groups: Sequence[Group], title: str, keys: Sequence[str]) -> list[str]:
    """Return keys by which rows of the same title differ, the most telling first."""
    chosen: list[str] = []

    def classes(by: Sequence[str]) -> int:
        parts = ([str(group[title]), *map(group.get, by)] for group in groups)
        return len({json.dumps(part) for part in parts})

    while classes(chosen) < len(groups):
        chosen.append(max(keys, key=lambda key: classes([*chosen, key])))
    return sorted(chosen, key=key_order)
