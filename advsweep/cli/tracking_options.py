"""What `sync` and `export` share: fields of a tracker, and what became of each run."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from advsweep.cli.output import echo_line
from advsweep.errors import ConfigError

if TYPE_CHECKING:
    from advsweep.components import Plain
    from advsweep.sweep.tracking.client import SyncResult

LISTED = 20


def parse_fields(texts: Sequence[str]) -> Plain:
    """Parses `FIELD=VALUE` options in Hydra's grammar.

    Raises:
        ConfigError: an option has no value or several.
    """
    if not texts:
        return {}
    from advsweep.config.overrides import parse_overrides

    for text in texts:
        if "=" not in text:
            raise ConfigError(f"'{text}': expected FIELD=VALUE, such as project=mine")
    overrides = parse_overrides(texts)
    for override in overrides:
        if override.swept or override.deleted or override.key == "name":
            raise ConfigError(f"{override.text}: expected FIELD=VALUE with one value")
    return {override.key: override.values[0] for override in overrides}


def print_synced(tracker: str, synced: SyncResult, *, err: bool = False) -> None:
    """Prints how many runs were sent, and on stderr which were not and why."""
    counts = (
        (len(synced.sent), "sent"),
        (len(synced.left_out), "left out"),
        (len(synced.failed), "failed"),
    )
    shown = ", ".join(f"{n} {what}" for n, what in counts if n) or "no runs"
    echo_line(f"{tracker}: {shown}", err=err)
    for run_id, reason in list(synced.left_out.items())[:LISTED]:
        echo_line(f"  skipped run {run_id}: {reason}", err=True)
    for run_id, error in list(synced.failed.items())[:LISTED]:
        echo_line(f"  run {run_id} failed: {error}", err=True)
