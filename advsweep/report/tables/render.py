"""Writes a report in a format."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import TypeVar

from advsweep.errors import ConfigError, nearest
from advsweep.report.tables.export import to_csv, to_json
from advsweep.report.tables.layout import lay_out
from advsweep.report.tables.markup import to_latex, to_markdown
from advsweep.report.tables.types import Report

T = TypeVar("T")


def _to_table(report: Report) -> str:
    from advsweep.report.tables.terminal import to_table  # rich is for people alone

    return to_table(lay_out(report))


FORMATS: dict[str, Callable[[Report], str]] = {
    "table": _to_table,
    "markdown": lambda report: to_markdown(lay_out(report)),
    "latex": lambda report: to_latex(lay_out(report)),
    "csv": to_csv,
    "json": to_json,
}


def render(report: Report, format: str = "table") -> str:
    """A report as text that ends with a line break; the same data give the same bytes.

    Raises:
        ConfigError: there is no such format.
    """
    return writer(FORMATS, format)(report)


def writer(formats: Mapping[str, Callable[[T], str]], name: str) -> Callable[[T], str]:
    """What writes a format.

    Raises:
        ConfigError: there is no such format.
    """
    if name not in formats:
        raise ConfigError(
            f"format: expected one of {', '.join(formats)}, got {name!r}; {nearest(name, formats)}"
        )
    return formats[name]
