"""`advsweep sync`: send finished runs to a tracker."""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING, Annotated, Any

import typer

from advsweep.cli.shared import options
from advsweep.cli.shared.completion import complete_tracker
from advsweep.cli.shared.options import RecordFormat
from advsweep.cli.shared.output import echo_line, progress_bar, warn
from advsweep.errors import ConfigError

if TYPE_CHECKING:
    from advsweep.components import Plain
    from advsweep.store import RunRecord, Store
    from advsweep.sweep.tracking.base import Tracking
    from advsweep.sweep.tracking.sender import SyncResult

LISTED = 20


def sync(
    tracker: Annotated[
        str,
        typer.Argument(
            metavar="TRACKER", help="wandb or tensorboard.", autocompletion=complete_tracker
        ),
    ],
    targets: options.Targets,
    fields: Annotated[
        list[str] | None,
        typer.Option(
            "-o",
            "--option",
            metavar="FIELD=VALUE",
            help="Set a field of tracking=TRACKER: project=mine or mode=offline; may be repeated "
            "(default: the tracker's defaults).",
        ),
    ] = None,
    trust_store: Annotated[
        bool,
        typer.Option(
            "--trust-store",
            help="Take all other fields from the store's record of the sweep.",
        ),
    ] = False,
    store: options.Store = None,
    output: options.Record = RecordFormat.TEXT,
) -> None:
    """Send runs that have ended to a tracker, each once.

    Skips runs that tracking=TRACKER already sent during training, so repeating the command
    changes nothing. Skips pending and running runs. Exits with code 1 if a run cannot be sent.
    """
    from advsweep.cli.shared.output import print_json
    from advsweep.cli.shared.runs import find_targets
    from advsweep.store import open_store
    from advsweep.sweep.tracking.sender import sync as sync_runs

    given = _given(fields or [])
    with open_store(store, create=False) as opened:
        tracking_of = _trackings(opened, tracker, given, trusted=trust_store)
        runs = find_targets(opened, targets).runs
        # Report a wrong setting of any run before sending the first.
        for run in runs:
            tracking_of(run)
        try:
            with _without_prompts(), progress_bar("runs", len(runs)) as on_run:
                synced = sync_runs(opened, runs, tracking_of, on_run)
        except KeyboardInterrupt:
            # A normal exit would wait for the tracker's server in its exit handlers.
            os._exit(130)
    if output is RecordFormat.JSON:
        print_json(_record(tracker, synced))
    else:
        _print(tracker, synced)
    raise typer.Exit(1 if synced.failed else 0)


def _given(texts: Sequence[str]) -> Plain:
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


def _trackings(
    store: Store, tracker: str, given: Plain, *, trusted: bool
) -> Callable[[RunRecord], Tracking]:
    """Returns a function from a run to its tracking.

    The given fields come first, then those of the run's sweep if the store is trusted. The
    returned function raises ConfigError for an invalid tracking.
    """
    from advsweep.sweep.registry import TRACKINGS
    from advsweep.sweep.tracking.base import TRACKING_KEY

    remembered = {sweep.name: sweep.spec.get(TRACKING_KEY, {}) for sweep in store.sweeps.select()}
    made: dict[str, Tracking] = {}

    def tracking_of(run: RunRecord) -> Tracking:
        nodes = (remembered[name] for name in run.sweeps)
        own: Plain = next(
            (n for n in nodes if isinstance(n, dict) and n.get("name") == tracker), {}
        )
        stored = {**own, "name": tracker, **given}
        node = stored if trusted else {"name": tracker, **given}
        key = json.dumps([node, stored])
        if key not in made:
            tracking = TRACKINGS.build(node, where="tracking")
            if not tracking.is_on:
                raise ConfigError(f"tracking: expected one that sends runs, got {node}")
            tracking.check()
            if others := {k: v for k, v in stored.items() if tracking.plain().get(k) != v}:
                warn(
                    f"ignoring fields of the store, {json.dumps(others)}; pass them with -o, or "
                    "pass --trust-store"
                )
            elif trusted and own:
                warn(f"the store chooses tracking: {json.dumps(node)}")
            made[key] = tracking
        return made[key]

    return tracking_of


@contextmanager
def _without_prompts() -> Iterator[None]:
    """Closes stdin, so that a tracker that would prompt for a key fails with a message."""
    stdin = sys.stdin
    with open(os.devnull) as sys.stdin:
        try:
            yield
        finally:
            sys.stdin = stdin


def _record(tracker: str, synced: SyncResult) -> dict[str, Any]:
    return {
        "tracking": tracker,
        "sent": synced.sent,
        "sent_before": synced.before,
        "left_out": [{"id": i, "reason": why} for i, why in synced.left_out.items()],
        "failed": [{"id": i, "error": error} for i, error in synced.failed.items()],
    }


def _print(tracker: str, synced: SyncResult) -> None:
    counts = (
        (len(synced.sent), "sent"),
        (len(synced.before), "sent before"),
        (len(synced.left_out), "left out"),
        (len(synced.failed), "failed"),
    )
    echo_line(f"{tracker}: " + (", ".join(f"{n} {what}" for n, what in counts if n) or "no runs"))
    for run_id, reason in list(synced.left_out.items())[:LISTED]:
        echo_line(f"  skipped run {run_id}: {reason}", err=True)
    for run_id, error in list(synced.failed.items())[:LISTED]:
        echo_line(f"  run {run_id} failed: {error}", err=True)
