"""`advsweep serve`: the page of a sweep in a browser, renewed while its runs train."""

from __future__ import annotations

import contextlib
import os
import tempfile
import webbrowser
from collections.abc import Iterator
from pathlib import Path
from typing import Annotated
from urllib.parse import urlencode

import typer

from advsweep.cli import consent, execution, options
from advsweep.cli.output import echo_line, warn
from advsweep.cli.runs import split_sweep
from advsweep.errors import counted, first_of
from advsweep.packages import import_extra

_LISTED = 10

EXAMPLES = (
    "advsweep serve demo",
    "advsweep serve --port 9000 --open",
)


def serve(
    arguments: Annotated[
        list[str] | None,
        options.sweep_and_settings(
            "The sweep to show first (default: the list of sweeps); and settings of executor, "
            "resources, stopping or tracking, for restarted runs."
        ),
    ] = None,
    port: Annotated[
        int | None,
        typer.Option(
            "--port",
            metavar="N",
            min=0,
            max=65535,
            help="Listen on this port; 0 for any that is free (default: 8765, or else a free one).",
        ),
    ] = None,
    open_: Annotated[
        bool,
        typer.Option("--open", help="Open the page in a browser."),
    ] = False,
    jobs: options.Jobs = None,
    retries: options.Retries = 2,
    run_code: options.RunCode = False,
    trust_store: options.TrustStore = False,
    store: options.Store = None,
) -> None:
    """Show a sweep in a browser, live; stop and restart its runs.

    Prints the address of a page on this machine: the page of `advsweep report`, renewed while
    runs train, with curves that grow. Its address holds a token, and only who knows it sees the
    page. Buttons stop and restart runs as `advsweep stop` and `advsweep retry` do; the options and
    settings here are those of such a retry. Serves until Ctrl-C, which stops no run.
    """
    for module in ("starlette", "uvicorn"):
        import_extra(module, "serve", "advsweep serve")
    from advsweep.serving import app
    from advsweep.serving.guard import new_token
    from advsweep.serving.restarts import Restarts

    consent.allow_programs(run_code)
    consent.trust_commands(trust_store)
    sweep, overrides = split_sweep(arguments or [])
    words = [*overrides, "--retries", str(retries)]
    if jobs is not None:
        words += ["--jobs", str(jobs)]
    if run_code:
        words.append("--run-code")
    if trust_store:
        words.append("--trust-store")
    with execution.writable_store(store, create=False) as opened:
        if sweep is not None:
            opened.sweeps.find(sweep)
        restarts = Restarts(opened.url, words)
        token = new_token()
        with contextlib.closing(app.listen(port)) as listener:
            page = "" if sweep is None else f"page?{urlencode({'sweep': sweep})}"
            address = f"http://127.0.0.1:{listener.getsockname()[1]}/{token}/{page}"
            echo_line(address)
            echo_line("Ctrl-C ends the page; runs go on.", err=True)
            with _opened_in_browser(address) if open_ else contextlib.nullcontext():
                try:
                    app.run_server(app.Serving(opened, restarts, token, warn), listener)
                finally:
                    _name_unfinished(restarts.unfinished())


def _name_unfinished(runs: list[int]) -> None:
    """Say which restarted runs go on."""
    if runs:
        listed = first_of(map(str, runs), _LISTED, " ")
        warn(f"{counted(len(runs), 'restarted run')} may go on: `advsweep stop {listed}`")


@contextlib.contextmanager
def _opened_in_browser(address: str) -> Iterator[None]:
    """Open an address in a browser by a private file.

    The arguments of a browser's process, which every user of the machine can read, must not hold
    the token.
    """
    number, name = tempfile.mkstemp(prefix="advsweep-", suffix=".html")
    file = Path(name)
    with os.fdopen(number, "w", encoding="utf-8") as out:
        out.write(f'<!DOCTYPE html><meta http-equiv="refresh" content="0; url={address}">\n')
    try:
        if not webbrowser.open(file.as_uri()):
            warn("--open: expected a browser, found none; open the address yourself")
        yield
    finally:
        file.unlink(missing_ok=True)
