"""A hub that cannot be reached is told of at once."""

from __future__ import annotations

import os
import socket
from collections.abc import Iterator

import pytest

from advsweep.machine import hub_unreachable


@pytest.fixture
def listening(monkeypatch: pytest.MonkeyPatch) -> Iterator[socket.socket]:
    """A server in the hub's place, without proxies before it."""
    for name in [name for name in os.environ if name.lower().endswith("_proxy")]:
        monkeypatch.delenv(name)
    monkeypatch.delenv("HF_HUB_OFFLINE", raising=False)
    with socket.create_server(("127.0.0.1", 0)) as server:
        monkeypatch.setenv("HF_ENDPOINT", f"http://127.0.0.1:{server.getsockname()[1]}")
        yield server


def test_a_hub_that_answers_can_be_reached(listening: socket.socket) -> None:
    assert hub_unreachable() == ""


def test_a_hub_that_does_not_is_named_with_the_reason(listening: socket.socket) -> None:
    port = listening.getsockname()[1]
    listening.close()
    assert hub_unreachable() == f"http://127.0.0.1:{port} cannot be reached (Connection refused)"


@pytest.mark.parametrize("name", ["http_proxy", "all_proxy", "HF_HUB_OFFLINE"])
def test_whoever_knows_better_is_asked(
    listening: socket.socket, monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    listening.close()
    monkeypatch.setenv(name, "1" if name == "HF_HUB_OFFLINE" else "http://127.0.0.1:1")
    assert hub_unreachable() == ""
