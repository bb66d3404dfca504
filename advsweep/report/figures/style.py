"""How rows look in figures: their colours, markers and labels."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

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
