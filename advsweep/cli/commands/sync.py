"""`advsweep sync`: send finished runs to a tracker."""

from __future__ import annotations

import json
import os
from collections.abc import Callable
from typing import TYPE_CHECKING, Annotated, Any

import typer

from advsweep.cli import options
from advsweep.cli.completion import complete_tracker
from advsweep.cli.options import RecordFormat
from advsweep.cli.output import progress_bar, warn
from advsweep.cli.tracking_options import parse_fields, print_synced
from advsweep.errors import ConfigError

if TYPE_CHECKING:
    from advsweep.components import Plain
    from advsweep.store import RunRecord, Store
    from advsweep.sweep.tracking.base import Tracking
    from advsweep.sweep.tracking.client import SyncResult


def sync(
    tracker: Annotated[
        str,
        typer.Argument(
            metavar="TRACKER",
            help="wandb, trackio, mlflow, tensorboard, or the tracker of a plug-in.",
            autocompletion=complete_tracker,
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
    """Sends what the tracker lacks of each, or all of it where the tracker cannot tell. Skips
    pending and running runs. Exits with code 1 if a run cannot be sent.

    Examples:
        advsweep sync wandb demo -o project=mine
        advsweep sync tensorboard last
    """
    from advsweep.cli.execution import without_prompts
    from advsweep.cli.output import print_json
    from advsweep.cli.runs import find_targets
    from advsweep.store import open_store
    from advsweep.sweep.tracking.client import sync as sync_runs

    given = parse_fields(fields or [])
    with open_store(store, create=False) as opened:
        tracking_of = _trackings(opened, tracker, given, trusted=trust_store)
        runs = find_targets(opened, targets).runs
        # Report a wrong setting of any run before sending the first.
        for run in runs:
            tracking_of(run)
        try:
            with without_prompts(), progress_bar("runs", len(runs)) as on_run:
                synced = sync_runs(opened, runs, tracking_of, on_run)
        except KeyboardInterrupt:
            # A normal exit would wait for the tracker's server in its exit handlers.
            os._exit(130)
    if output is RecordFormat.JSON:
        print_json(_record(tracker, synced))
    else:
        print_synced(tracker, synced)
    raise typer.Exit(1 if synced.failed else 0)


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


def _record(tracker: str, synced: SyncResult) -> dict[str, Any]:
    return {
        "tracking": tracker,
        "sent": synced.sent,
        "left_out": [{"id": i, "reason": why} for i, why in synced.left_out.items()],
        "failed": [{"id": i, "error": error} for i, error in synced.failed.items()],
    }
