"""Sweeps: a plan of everything first, then processes under supervision, resumable.

The package is callable: `advsweep.sweep(...)` is `advsweep.api.sweep`.
"""

from advsweep.callable_packages import make_callable

make_callable(__name__, "advsweep.api", "sweep")
