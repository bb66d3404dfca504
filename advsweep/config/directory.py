"""Where the config groups lie, and what is kept for other sweeps of this user."""

from __future__ import annotations

import os
from pathlib import Path

import platformdirs

from advsweep.errors import ConfigError


def conf_directory() -> Path:
    """Our own config groups: `advsweep/conf` of an installed wheel, `conf` of a checkout.

    Raises:
        ConfigError: the installation lacks them.
    """
    package = Path(__file__).resolve().parents[1]
    for candidate in (package / "conf", package.parent / "conf"):
        if (candidate / "config.yaml").is_file():
            return candidate
    raise ConfigError(
        f"expected config groups in {package / 'conf'}, got none; install advsweep again"
    )


def cache_folder() -> Path:
    """Where base models are kept, among others: $ADVSWEEP_CACHE, or the user's cache folder."""
    configured = os.environ.get("ADVSWEEP_CACHE")
    return Path(configured) if configured else platformdirs.user_cache_path("advsweep")
