"""Checks quickly whether the Hugging Face hub can be reached; its own client retries for 30 s."""

from __future__ import annotations

import os
import socket
import urllib.request
from urllib.parse import urlsplit

_HOME = "https://huggingface.co"
_PORTS = {"http": 80, "https": 443}
_PATIENCE_SECONDS = 10.0


def unreachable() -> str:
    """Say why the hub cannot be reached; empty if it can be.

    Empty also behind a proxy, which may reach what this process cannot, and if HF_HUB_OFFLINE is
    set, as the client then fails at once by itself.
    """
    endpoint = os.environ.get("HF_ENDPOINT") or _HOME
    place = urlsplit(endpoint)
    if (
        os.environ.get("HF_HUB_OFFLINE")
        or {place.scheme, "all"} & urllib.request.getproxies().keys()
    ):
        return ""
    port = place.port or _PORTS.get(place.scheme, 443)
    try:
        socket.create_connection((place.hostname, port), _PATIENCE_SECONDS).close()
    except OSError as error:
        return f"{endpoint} cannot be reached ({error.strerror or error})"
    return ""
