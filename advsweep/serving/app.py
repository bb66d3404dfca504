"""The server: its addresses and what they answer. starlette and uvicorn are imported here alone."""

from __future__ import annotations

import asyncio
import hashlib
import socket
from collections.abc import Callable, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from functools import partial
from typing import TypeVar

import uvicorn
from starlette.applications import Starlette
from starlette.datastructures import MutableHeaders
from starlette.requests import Request
from starlette.responses import HTMLResponse, JSONResponse, PlainTextResponse, Response
from starlette.routing import Route
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from advsweep.errors import AdvsweepError, ConfigError, NotFoundError, reason_of
from advsweep.printable import printable_line, printable_values
from advsweep.report.html import render_sweeps
from advsweep.serving.guard import HEADERS, check_request
from advsweep.serving.orders import MOST_BYTES, Verb, carry_out, parse_order
from advsweep.serving.pages import Pages
from advsweep.serving.restarts import Starter
from advsweep.serving.state import States
from advsweep.store import Store
from advsweep.store.store import explain_by_damage

T = TypeVar("T")

PORT = 8765


@dataclass(frozen=True)
class Serving:
    """What the server needs.

    Attributes:
        report: prints one line on an error of ours.
    """

    store: Store
    restarts: Starter
    token: str
    report: Callable[[str], None]


class Guard:
    """Answers requests of the page's user alone, and adds the headers of every answer."""

    def __init__(self, app: ASGIApp, token: str) -> None:
        self._app = app
        self._token = token

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            return

        async def send_guarded(message: Message) -> None:
            if message["type"] == "http.response.start":
                headers = MutableHeaders(scope=message)
                for name, value in HEADERS.items():
                    headers[name] = value
            await send(message)

        headers = Request(scope).headers
        rest, refusal = check_request(scope["method"], scope["path"], headers, self._token)
        if refusal is not None:
            answer = _explain(scope, refusal.message, refusal.status)
            await answer(scope, receive, send_guarded)
            return
        await self._app({**scope, "path": rest, "raw_path": rest.encode()}, receive, send_guarded)


class Endpoints:
    """What each address answers.

    The store is read in a thread, so that a slow disk stops no other answer; pages are rendered
    in one of their own.
    """

    def __init__(self, serving: Serving) -> None:
        self._serving = serving
        self._store = serving.store
        self._thread = ThreadPoolExecutor(1, "advsweep store")
        self._states = States(serving.store)
        self._pages = Pages(serving.store)

    def routes(self) -> list[Route]:
        return [
            Route("/", self.sweeps),
            Route("/page", self.page),
            Route("/state", self.state),
            Route("/stop", partial(self.order, "stop"), methods=["POST"]),
            Route("/retry", partial(self.order, "retry"), methods=["POST"]),
        ]

    async def sweeps(self, request: Request) -> Response:
        return HTMLResponse(await self._read(render_sweeps, self._store))

    async def page(self, request: Request) -> Response:
        sweep = request.query_params.get("sweep")
        mark = await self._read(self._store.changes.mark)
        page = await asyncio.wrap_future(self._pages.render(sweep, mark))
        return _unless_known(request, page.version, HTMLResponse(page.text))

    async def state(self, request: Request) -> Response:
        sweep = request.query_params.get("sweep")
        state = await self._read(self._states.read, sweep)
        version = self._pages.version(sweep, state.mark)
        restarts = await self._read(self._serving.restarts.describe)
        record = {**state.record, "page": version, "restarts": restarts}
        answer = JSONResponse(printable_values(record))
        return _unless_known(request, hashlib.sha256(answer.body).hexdigest()[:16], answer)

    async def order(self, verb: Verb, request: Request) -> Response:
        order = parse_order(await _read_body(request))
        done = await self._read(carry_out, verb, order, self._store, self._serving.restarts)
        return JSONResponse({"message": done})

    async def _read(self, call: Callable[..., T], *args: object) -> T:
        """Return what a call that reads the store returns; it runs in a thread."""
        return await asyncio.get_running_loop().run_in_executor(self._thread, call, *args)

    async def explain(self, request: Request, error: Exception) -> Response:
        """Answer a request that ended in an error that the user can correct."""
        status = 404 if isinstance(error, NotFoundError) else 503
        if isinstance(error, ConfigError):
            status = 400
        return _explain(request.scope, str(error), status)

    async def fail(self, request: Request, error: Exception) -> Response:
        """Answer a request that ended in an error of ours, or of a damaged store."""
        damage = explain_by_damage()
        text = str(damage) if damage else f"{type(error).__name__}: {error}"
        self._serving.report(text)
        return _explain(request.scope, text, 500)


def make_app(serving: Serving) -> ASGIApp:
    """Return the application behind its guard."""
    endpoints = Endpoints(serving)
    app = Starlette(
        routes=endpoints.routes(),
        exception_handlers={AdvsweepError: endpoints.explain, Exception: endpoints.fail},
    )
    return Guard(app, serving.token)


def listen(port: int | None) -> socket.socket:
    """Return a socket that listens on the loopback interface alone.

    Args:
        port: 0 for any that is free; None for the usual one, or any if another program has it.

    Raises:
        ConfigError: another program has the port, or it may not be used.
    """
    if port is not None:
        return _listen(port)
    try:
        return _listen(PORT)
    except ConfigError:
        return _listen(0)


def _listen(port: int) -> socket.socket:
    listener = socket.socket(socket.AF_INET, socket.SOCK_STREAM)
    # A server that ended a moment ago still has the port otherwise.
    listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    try:
        listener.bind(("127.0.0.1", port))
        listener.listen()
    except OSError as error:
        listener.close()
        raise ConfigError(
            f"--port: expected a free port, got {port} ({reason_of(error)}); choose another one, "
            "or 0 for any that is free"
        ) from error
    return listener


def make_config(serving: Serving) -> uvicorn.Config:
    """Return how uvicorn serves: without logs, which would hold the token."""
    return uvicorn.Config(
        make_app(serving),
        http="h11",
        loop="asyncio",
        ws="none",
        lifespan="off",
        access_log=False,
        log_config=None,
        log_level="critical",
        server_header=False,
        timeout_graceful_shutdown=1,
    )


def run_server(serving: Serving, listener: socket.socket) -> None:
    """Serve until Ctrl-C or SIGTERM, which take effect when it has ended."""
    uvicorn.Server(make_config(serving)).run(sockets=[listener])


async def _read_body(request: Request) -> bytes:
    """Return the body of a request.

    Raises:
        ConfigError: it is too large.
    """
    body = b""
    async for part in request.stream():
        body += part
        if len(body) > MOST_BYTES:
            raise ConfigError(f"expected an order of at most {MOST_BYTES:,} bytes, got more")
    return body


def _unless_known(request: Request, version: str, answer: Response) -> Response:
    """Return the answer, or that the browser has it already."""
    etag = f'"{version}"'
    if request.headers.get("if-none-match") == etag:
        return Response(status_code=304, headers={"ETag": etag})
    answer.headers["ETag"] = etag
    return answer


def _explain(scope: Mapping[str, object], message: str, status: int) -> Response:
    """Return an error: as text where a page is expected, as JSON for the page's script."""
    line = printable_line(message)
    if str(scope["path"]).endswith(("/page", "/")):
        return PlainTextResponse(f"advsweep: {line}\n", status)
    return JSONResponse({"message": line}, status)
