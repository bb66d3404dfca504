"""Where the config groups lie."""

from __future__ import annotations

from pathlib import Path

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
