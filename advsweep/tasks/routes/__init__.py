"""Routes: find a way over a map that is never shown, past a stop and to a goal."""

from advsweep.tasks.routes.maps import NODE_SYMBOLS
from advsweep.tasks.routes.task import Routes

__all__ = ["NODE_SYMBOLS", "Routes"]
