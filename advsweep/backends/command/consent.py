"""The user's consent to start the command of a template.

A template starts processes. Configs of runs lie in a store that others may have written, so a
process starts the command of a stored config only if the present command line names the same
template, or trusts the store. An environment variable carries that to the processes of runs:
digests of templates, with the folder and the file that the command line gave.
"""

from __future__ import annotations

import json
import os
from collections.abc import Mapping
from typing import Any

from advsweep.backends.base import hash_json

COMMANDS = "ADVSWEEP_COMMANDS"
"""The environment variable: a JSON object of places by digest; "*" stands for any template."""

_ANY = "*"


def allow_template(content: Mapping[str, Any], template: str, folder: str) -> None:
    """Record that the command line named a template, for this process and its children.

    Args:
        template: the file.
        folder: the working folder of the command line.
    """
    _write({**_read(), hash_json(dict(content)): {"template": template, "folder": folder}})


def allow_stored_templates() -> None:
    """Record that the user trusts the store to name commands."""
    _write({**_read(), _ANY: {}})


def allowed_places(content: Mapping[str, Any]) -> Mapping[str, str] | None:
    """Return the file and folder that the command line gave with a template.

    Returns:
        An empty mapping if only the store names them and is trusted; None without consent.
    """
    # By content, so that a store cannot put another command behind the name of a file.
    allowed = _read()
    found = allowed.get(hash_json(dict(content)), allowed.get(_ANY))
    return None if found is None else dict(found)


def _read() -> dict[str, Any]:
    try:
        allowed = json.loads(os.environ.get(COMMANDS, "{}"))
    except ValueError:
        return {}
    return allowed if isinstance(allowed, dict) else {}


def _write(allowed: Mapping[str, Any]) -> None:
    os.environ[COMMANDS] = json.dumps(allowed, sort_keys=True)
