"""Print one line per benchmark: name, measured value, target, and a peer for comparison."""

from __future__ import annotations

import os

_LINE = "{:<50} {:>13} {:>13} {:>13}  {}"


def head(measured: str) -> None:
    """Prints the header of a table; `measured` names the unit of its values."""
    load = f"load {os.getloadavg()[0]:.1f} on {os.cpu_count()} cores"
    print(_LINE.format(f"({load})", measured, "target", "peer", "peer is"))


def show(what: str, measured: str, target: str = "", peer: str = "", name: str = "") -> None:
    print(_LINE.format(what, measured, target, peer, name).rstrip(), flush=True)
