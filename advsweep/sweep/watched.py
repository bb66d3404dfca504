"""Follows a sweep while it is executed: a screen shows it, and its tracker is told."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING

from advsweep.sweep.live_view import live_view
from advsweep.sweep.watch import watch_events

if TYPE_CHECKING:
    from advsweep.store import Store
    from advsweep.sweep.events import Event
    from advsweep.sweep.planning.plan import Plan
    from advsweep.sweep.screens import Screen


@contextmanager
def watched(
    plan: Plan,
    store: Store,
    jobs: int | None,
    say: Callable[[str], None],
    screen: Screen | None = None,
) -> Iterator[Callable[[Event], None]]:
    """Show a sweep and tell its tracker; the yielded function is the `on_event` of `execute`.

    Args:
        jobs: as of `execute`.
        say: receives what goes wrong with the tracker, a line each.
        screen: where the progress is shown; None: on stderr.

    Raises:
        ConfigError: the tracker cannot be used on this machine.
    """
    slots = plan.executor.slots(jobs)
    with (
        live_view(plan, store, slots, screen) as show,
        watch_events(plan, store, show, say) as on_event,
    ):
        yield on_event
