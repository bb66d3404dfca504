"""One line per figure: what, what came out, what was asked for, and a peer beside it."""

from __future__ import annotations

import os

_LINE = "{:<50} {:>13} {:>13} {:>13}  {}"


def head(measured: str) -> None:
    """The head of a table; `measured` says in which unit its figures are."""
    load = f"load {os.getloadavg()[0]:.1f} on {os.cpu_count()} cores"
    print(_LINE.format(f"({load})", measured, "asked", "peer", "peer is"))


def show(what: str, measured: str, asked: str = "", peer: str = "", name: str = "") -> None:
    print(_LINE.format(what, measured, asked, peer, name).rstrip(), flush=True)
