"""How what is compared looks: alike in every figure, and apart in grey too."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

from advsweep.report.figures.canvas import COLOURS, load_matplotlib
from advsweep.report.groups import Group
from advsweep.report.numbers import show_key

_PALETTE = COLOURS[:-1]
BLACK = COLOURS[-1]
"""Base models and models without a run are black."""

_MARKERS = ("o", "s", "^", "D", "v", "P", "<", ">", "d", "p", "h", "8")
_DASHES: tuple[tuple[float, ...], ...] = ((), (5, 1.8), (6, 1.6, 1.4, 1.6), (1.4, 1.4))
_HATCHES = ("", "/////", "xxxxx", ".....")
_FILLINGS = (None, "white", "#bbbbbb", "black")
TOLD_APART = len(_PALETTE) * len(_DASHES)
"""So many looks there are."""
SHADED_APART = len(_MARKERS)
"""So many shades."""


class Look(NamedTuple):
    """How a row's lines, points and bars are drawn.

    Attributes:
        variant: which of the rows of this colour it is: each has other dashes, fillings of
            markers and hatches.
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
        """How markers are drawn, for matplotlib's lines."""
        own = {"marker": self.marker, "color": self.colour}
        if self.colour == BLACK:
            return own
        if self.variant == 0:
            return {**own, "markeredgecolor": "white", "markeredgewidth": 0.5}
        return {**own, "markerfacecolor": _FILLINGS[self.variant]}

    @property
    def hatch(self) -> str:
        return _HATCHES[self.variant]


UNTRAINED = (Look(BLACK, "X", 3), Look(BLACK, "*", 1), Look(BLACK, "X", 2), Look(BLACK, "*", 0))
"""Of base models and models without a run, one after the other."""


def choose_looks(groups: Sequence[Group], estimators: Sequence[str]) -> list[Look]:
    """A look for each row: the estimator's colour and marker, and dashes by its variants.

    Where all rows have one estimator, each has a colour.

    Args:
        groups: what names the rows.
        estimators: every one that may need a colour, in a fixed order: that of a whole sweep
            gives an estimator the same colour whichever of the sweep's runs are drawn.
    """
    places = {name: place for place, name in enumerate(estimators)}
    variants: dict[int, int] = {}
    looks = []
    for number, group in enumerate(groups):
        place = places[group["estimator"]] if len(places) > 1 else number
        variant = variants.get(place, 0)
        variants[place] = variant + 1
        cycle, shade = divmod(place, len(_PALETTE))
        marker = _MARKERS[place % len(_MARKERS)]
        looks.append(Look(_PALETTE[shade], marker, (variant + 2 * cycle) % len(_DASHES)))
    return looks


def shaded_looks(count: int) -> list[Look]:
    """Looks of values that are in an order: from dark to light, each with a marker."""
    load_matplotlib()
    import matplotlib

    shades = matplotlib.colormaps["cividis"]
    # The lightest shades are too pale on white.
    at = [0.9 * place / max(count - 1, 1) for place in range(count)]
    return [
        Look(matplotlib.colors.to_hex(shades(share)), _MARKERS[place % len(_MARKERS)])
        for place, share in enumerate(at)
    ]


def label_of(group: Group) -> str:
    """A row in few words, such as `fade h_star=0.5, group_size=8`."""
    own, others = [str(group["estimator"])], []
    for key, value in group.items():
        if key == "estimator":
            continue
        node, _, rest = key.partition(".")
        if node == "estimator":
            own.append(f"{rest}={show_key(value)}")
        else:
            others.append(f"{key}={show_key(value)}")
    return ", ".join([" ".join(own), *others])
