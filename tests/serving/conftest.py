"""A store with runs in every state, and a server of it in a thread."""

from __future__ import annotations

import hashlib
import http.client
import json
import socket
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest
import uvicorn

from advsweep.serving.app import Serving, listen, make_config
from advsweep.store import NewRun, Owner, Status, Store, open_store

STEPS = 20
TOKEN = "a-token-that-only-the-tests-know"


@dataclass
class Training:
    """Runs of a store, trained by hand."""

    store: Store
    sweep: str = "demo"

    def add(self, estimator: str = "grpo", seed: int = 0, **config: Any) -> int:
        plain = {"estimator": {"name": estimator}, "group_size": 8, "prompts_per_step": 4}
        plain |= {"steps": STEPS, **config}
        config_hash = hashlib.sha256(json.dumps(plain).encode()).hexdigest()
        new = NewRun(
            identity=hashlib.sha256(f"{config_hash} {seed}".encode()).hexdigest(),
            config_hash=config_hash,
            seed=seed,
            config={**plain, "seed": seed},
            steps=STEPS,
            estimator=estimator,
            backend="fake",
        )
        self.store.sweeps.add(self.sweep, {})
        [run] = self.store.runs.add([new], self.sweep)
        return run

    def train(self, run: int, steps: Sequence[int], value: float = 0.5) -> None:
        """Trains the steps of a run, which is claimed before its first."""
        if run not in self.store.leases.held:
            assert self.store.leases.claim(run, Owner.current())
        points = [
            (name, step, value + step / 100)
            for name in ("collapse/acr", "reward/mean")
            for step in steps
        ]
        self.store.metrics.record(run, points, step=steps[-1], stage="training")

    def end(self, run: int, status: Status = Status.DONE, **how: Any) -> None:
        self.store.leases.finish(run, status, **how)

    def finished(self, estimator: str = "grpo", seed: int = 0, value: float = 0.5) -> int:
        run = self.add(estimator, seed)
        self.train(run, range(1, STEPS + 1), value)
        self.end(run)
        return run


@pytest.fixture
def training(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Training]:
    monkeypatch.chdir(tmp_path)
    with open_store("advsweep.db") as store:
        yield Training(store)


class NoRestarts:
    """Takes orders to restart runs, and starts nothing."""

    def __init__(self) -> None:
        self.started: list[list[int]] = []

    def start(self, runs: Sequence[int]) -> str:
        self.started.append(list(runs))
        return f"Started a retry of {len(runs)} runs."

    def describe(self) -> list[str]:
        return [f"retry of {runs}: in progress" for runs in self.started]


@dataclass
class Site:
    """A running server.

    Attributes:
        reported: what it said on the terminal.
    """

    port: int
    restarts: NoRestarts
    reported: list[str] = field(default_factory=list)

    @property
    def host(self) -> str:
        return f"127.0.0.1:{self.port}"

    def address(self, path: str = "") -> str:
        return f"http://{self.host}/{TOKEN}/{path}"

    def ask(
        self, path: str, order: Any = None, *, token: str = TOKEN, **headers: str
    ) -> tuple[int, Mapping[str, str], bytes]:
        """Asks for a path behind the token, or posts an order."""
        connection = http.client.HTTPConnection("127.0.0.1", self.port, timeout=240)
        given = {name.replace("_", "-"): value for name, value in headers.items()}
        if order is None:
            connection.request("GET", f"/{token}/{path}", headers=given)
        else:
            given.setdefault("content-type", "application/json")
            connection.request("POST", f"/{token}/{path}", json.dumps(order), given)
        answer = connection.getresponse()
        body = answer.read()
        connection.close()
        return answer.status, dict(answer.getheaders()), body

    def state(self, sweep: str = "demo") -> Any:
        status, _, body = self.ask(f"state?sweep={sweep}")
        assert status == 200, body
        return json.loads(body)


@pytest.fixture
def serve() -> Iterator[Callable[[Store], Site]]:
    """`serve(store)`: a server of the store."""
    running: list[tuple[uvicorn.Server, threading.Thread, socket.socket]] = []

    def served(store: Store) -> Site:
        listener = listen(0)
        site = Site(listener.getsockname()[1], NoRestarts())
        serving = Serving(store, site.restarts, TOKEN, site.reported.append)
        server = uvicorn.Server(make_config(serving))
        thread = threading.Thread(target=server.run, args=([listener],))
        thread.start()
        running.append((server, thread, listener))
        while not server.started:
            time.sleep(0.01)
        return site

    yield served
    for server, thread, listener in running:
        server.should_exit = True
        thread.join()
        listener.close()


@pytest.fixture
def site(training: Training, serve: Callable[[Store], Site]) -> Iterator[Site]:
    """A server of the store of `training`."""
    with open_store("advsweep.db") as store:
        yield serve(store)
