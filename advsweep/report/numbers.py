"""How numbers are written for people."""

from __future__ import annotations

from typing import Any

DIGITS = 3


def show(value: float) -> str:
    """A number with three digits after the point, or four significant ones if it is large."""
    return f"{value:.{DIGITS}f}" if abs(value) < 1000 else f"{value:.4g}"


def show_key(value: Any) -> str:
    """A config value: lists by their items, numbers short, null as such."""
    if isinstance(value, (list, tuple)):
        return "[" + ", ".join(show_key(item) for item in value) + "]"
    if value is None:
        return "null"
    if isinstance(value, bool):
        return str(value).lower()
    return f"{value:g}" if isinstance(value, float) else str(value)
