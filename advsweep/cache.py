"""What is kept for this user's other runs and sweeps."""

from __future__ import annotations

import os
from pathlib import Path

import platformdirs


def cache_folder() -> Path:
    """Where base models are kept, among others: $ADVSWEEP_CACHE, or the user's cache folder."""
    configured = os.environ.get("ADVSWEEP_CACHE")
    return Path(configured) if configured else platformdirs.user_cache_path("advsweep")
