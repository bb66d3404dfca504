"""Hand the events of a sweep to what shows it: a view, and the plan's tracker."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING

from advsweep.sweep.executors.base import QueueExecutor
from advsweep.sweep.tracking.base import NoTracking, sync_command, tracker_client

if TYPE_CHECKING:
    from advsweep.store import Store
    from advsweep.sweep.events import Event
    from advsweep.sweep.planning.plan import Plan


@contextmanager
def watch_events(
    plan: Plan, store: Store, show: Callable[[Event], None], say: Callable[[str], None]
) -> Iterator[Callable[[Event], None]]:
    """Yield a function that shows each event, and sends it to the plan's tracker.

    Args:
        show: shows an event.
        say: receives what goes wrong with the tracker, a line each; it has no other effect.

    Raises:
        ConfigError: the tracker cannot be used on this machine.
    """
    tracking = plan.tracking
    if not isinstance(tracking, NoTracking) and isinstance(plan.executor, QueueExecutor):
        command = sync_command(tracking, plan.name or "RUN")
        say(f"tracking: queued runs are not tracked live; {command} sends finished runs")
        yield show
        return
    with without_prompts(), tracker_client(store, tracking, say) as track:

        def on_event(event: Event) -> None:
            show(event)
            track(event)

        yield on_event


@contextmanager
def without_prompts() -> Iterator[None]:
    """Close stdin, so that a tracker that would prompt for a key fails with a message."""
    stdin = sys.stdin
    with open(os.devnull) as sys.stdin:
        try:
            yield
        finally:
            sys.stdin = stdin
