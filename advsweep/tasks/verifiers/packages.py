"""Packages that are installed here: programs should find them in a sandbox as well."""

from __future__ import annotations

import importlib.metadata
import importlib.util
import sys

# A script that prints those of the names in its input that it cannot import.
PROBE = """
import importlib.util
print(*[name for name in input().split() if importlib.util.find_spec(name) is None])
"""

_OWN = "advsweep"


def package_folders() -> list[str]:
    """Return the folders in which this process finds packages."""
    return [path for path in sys.path if path.endswith(("site-packages", "dist-packages"))]


def installed_packages() -> list[str]:
    """Return the top-level modules of the installed distributions, without this one's own."""
    modules = importlib.metadata.packages_distributions()
    names = [name for name, owners in modules.items() if set(owners) != {_OWN}]
    return sorted(name for name in names if name.isidentifier() and _is_found(name))


def _is_found(name: str) -> bool:
    try:
        return importlib.util.find_spec(name) is not None
    except (ImportError, ValueError):
        return False
