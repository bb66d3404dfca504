"""Margins of equivalence: the differences that are too small to matter."""

from __future__ import annotations

import math
from collections.abc import Sequence

from advsweep.errors import ConfigError


def parse_margins(texts: Sequence[str], outcomes: Sequence[str]) -> dict[str, float]:
    """Parse margins: a number for every pass@k, or OUTCOME=NUMBER.

    Args:
        outcomes: the names of the columns that may have one.

    Raises:
        ConfigError: a text is neither, or names another outcome.
    """
    margins: dict[str, float] = {}
    for text in texts:
        name, _, number = text.rpartition("=")
        try:
            margin = float(number)
        except ValueError:
            margin = math.nan
        named = [name] if name else [each for each in outcomes if each.startswith("pass@")]
        if not named or not 0 < margin < math.inf or not {*named} <= {*outcomes}:
            raise ConfigError(
                f"--margin: expected a positive NUMBER, or OUTCOME=NUMBER with one of "
                f"{', '.join(outcomes)}, got {text!r}"
            )
        margins |= dict.fromkeys(named, margin)
    return margins


def show_margin(margin: float) -> str:
    """Write a margin in two significant digits, rounded up, so that what is said of it holds.

    >>> show_margin(0.0381)
    '0.039'
    """
    places = 1 - math.floor(math.log10(margin))
    # A margin that has two digits already is not rounded.
    up = math.ceil(round(margin * 10**places, 6)) / 10**places
    return f"{up:.{max(places, 0)}f}"
