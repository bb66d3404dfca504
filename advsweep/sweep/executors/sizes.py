"""Sizes of memory as they are written: `512M`, `8G`."""

from __future__ import annotations

import re

from advsweep.errors import ConfigError

_SIZE = re.compile(r"(\d{1,18}(?:\.\d+)?)([KMGT])(?:i?B)?", re.ASCII | re.IGNORECASE)


def parse_size(text: str) -> int:
    """Parse `512M`, `8G` or `1.5GiB`, in powers of 1024; returns bytes.

    Raises:
        ConfigError: the text is not a size above 0 with a unit.
    """
    match = _SIZE.fullmatch(text.strip())
    size = 0
    if match is not None:
        size = int(float(match[1]) * 1024 ** (" KMGT".index(match[2].upper())))
    if size <= 0:
        raise ConfigError(
            f"memory: expected a size above 0 with its unit, such as 512M or 8G, got {text!r}"
        )
    return size


def show_size(size: int) -> str:
    """Return a size in the form that `parse_size` reads, rounded to a MiB."""
    if size >= 2**30:
        return f"{size / 2**30:.1f}".removesuffix(".0") + "G"
    return f"{size >> 20}M"
