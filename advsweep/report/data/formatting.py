"""How numbers are written for people."""

from __future__ import annotations

import math
from typing import Any

DIGITS = 3
"""Digits after the point of a number without an interval."""

_MOST = 6


def show(value: float) -> str:
    """A number with three digits after the point, fewer if it is large, its first if tiny."""
    if value != 0 and abs(value) < 10**-DIGITS:
        return f"{value:.{DIGITS}g}"
    if abs(value) < 1000:
        return f"{value:.{DIGITS}f}"
    return f"{value:.0f}" if abs(value) < 10**_MOST else f"{value:.4g}"


def show_interval(mean: float, half_width: float) -> tuple[str, str]:
    """A mean and half its interval, which has two digits that count; the mean ends with them.

    The half is empty if there is none, and `0` where nothing varies.

    >>> show_interval(0.49133, 0.0442)
    ('0.491', '0.044')
    """
    if not math.isfinite(half_width) or not math.isfinite(mean):
        return show(mean), ""
    if half_width == 0:
        return show(mean), "0"
    # Rounded first: of 0.0996 there is 0.10 left, not 0.100.
    digits = 1 - int(f"{half_width:.1e}".partition("e")[2])
    if digits > _MOST:
        return f"{mean:.{DIGITS}g}", f"{half_width:.2g}"
    return f"{mean:.{max(digits, 0)}f}", f"{half_width:.{max(digits, 0)}f}"


def show_p(value: float) -> str:
    """A p-value with three digits; below what they show, that it is."""
    if math.isnan(value):
        return ""
    return "<0.001" if value < 10**-DIGITS else f"{value:.{DIGITS}f}"


def show_key(value: Any) -> str:
    """A config value: lists by their items, numbers short, null as such."""
    if isinstance(value, (list, tuple)):
        return "[" + ", ".join(show_key(item) for item in value) + "]"
    if value is None:
        return "null"
    if isinstance(value, bool):
        return str(value).lower()
    return f"{value:g}" if isinstance(value, float) else str(value)
