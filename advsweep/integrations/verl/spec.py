"""What verl's configuration says of our components."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from omegaconf import DictConfig, OmegaConf

from advsweep.errors import ConfigError

# Of the key, the advantage function and the policy loss.
NAME = "advsweep"


def read_spec(config: Any, key: str, kind: str) -> str | dict[str, Any]:
    """Return what the key `advsweep` of a section says: a name, or a mapping.

    Args:
        config: the section, as OmegaConf, a mapping or an object.
        key, kind: the whole key, and what it describes, for messages.

    Raises:
        ConfigError: the key is missing.
    """
    spec = config.get(NAME) if isinstance(config, Mapping) else getattr(config, NAME, None)
    if isinstance(spec, DictConfig):
        spec = OmegaConf.to_container(spec, resolve=True)
    if isinstance(spec, Mapping):
        return {str(key): value for key, value in spec.items()}
    if not isinstance(spec, str):
        raise ConfigError(
            f"{key}: expected an {kind}, got {spec!r}; add +{key}.name=NAME, for example"
        )
    return spec
