"""Where the config groups are found."""

from __future__ import annotations

from pathlib import Path

import pytest

from advsweep.config import groups
from advsweep.errors import ConfigError


@pytest.mark.parametrize("place", ["site-packages/advsweep/conf", "site-packages/conf"])
def test_a_wheel_and_a_checkout_have_them(
    place: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    module = tmp_path / "site-packages" / "advsweep" / "config" / "directory.py"
    monkeypatch.setattr(groups, "__file__", str(module))
    with pytest.raises(ConfigError, match="install advsweep again"):
        groups.conf_directory()
    (tmp_path / place).mkdir(parents=True)
    (tmp_path / place / "config.yaml").touch()
    assert groups.conf_directory() == tmp_path / place
