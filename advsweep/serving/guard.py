"""Which requests are answered.

The server listens on the loopback interface, where two strangers can reach it: other users and
programs of the machine, and pages that the user's own browser shows. The first do not know the
token, which is the first part of every path. The second know it neither; should one learn it, it
still cannot read an answer, as none allows its origin, nor post an order, as its origin is not
that of the page. A name that leads to this machine, but is not its own, is refused as well (DNS
rebinding). There are no cookies, which a browser would send to every port of the machine.
"""

from __future__ import annotations

import secrets
from collections.abc import Mapping
from dataclasses import dataclass

HOSTS = frozenset({"127.0.0.1", "localhost"})

# Sent with every answer. No page may embed an answer, read it or learn its address.
HEADERS: Mapping[str, str] = {
    "Cache-Control": "no-store",
    "Content-Security-Policy": "frame-ancestors 'none'",
    "Cross-Origin-Opener-Policy": "same-origin",
    "Cross-Origin-Resource-Policy": "same-origin",
    "Referrer-Policy": "no-referrer",
    "X-Content-Type-Options": "nosniff",
    "X-Frame-Options": "DENY",
}

_REMEDY = "open the address that `advsweep serve` printed when it started"


def new_token() -> str:
    """Return a token that nobody can guess."""
    return secrets.token_urlsafe(32)


@dataclass(frozen=True)
class Refusal:
    """Why a request is not answered."""

    status: int
    message: str


def check_request(
    method: str, path: str, headers: Mapping[str, str], token: str
) -> tuple[str, Refusal | None]:
    """Return the rest of a path behind the token, and why the request is refused.

    Args:
        headers: by name in lower case.
    """
    host = headers.get("host", "")
    name = host.rpartition(":")[0] if ":" in host else host
    if name not in HOSTS:
        expected = " or ".join(sorted(HOSTS))
        return "", Refusal(403, f"expected {expected} as the host; {_REMEDY}")
    _, _, rest = path.partition("/")
    given, _, rest = rest.partition("/")
    # In constant time, so that the time of an answer tells nothing about the token.
    if not secrets.compare_digest(given.encode(), token.encode()):
        return "", Refusal(403, f"expected the token in the address; {_REMEDY}")
    if method == "POST":
        return f"/{rest}", _refuse_order(headers, host)
    return f"/{rest}", _refuse_reading(headers)


def _refuse_order(headers: Mapping[str, str], host: str) -> Refusal | None:
    """Refuse an order that does not come from a page of this server."""
    origin = headers.get("origin", f"http://{host}")
    site = headers.get("sec-fetch-site", "same-origin")
    if origin != f"http://{host}" or site != "same-origin":
        return Refusal(403, "expected an order of the page itself, got one of another site")
    kind = headers.get("content-type", "").partition(";")[0].strip()
    if kind != "application/json":
        return Refusal(415, f"expected application/json, got '{kind}'")
    return None


def _refuse_reading(headers: Mapping[str, str]) -> Refusal | None:
    """Refuse to be part of another site's page; links from there are fine."""
    site = headers.get("sec-fetch-site", "none")
    if site in ("none", "same-origin"):
        return None
    mode, what = headers.get("sec-fetch-mode"), headers.get("sec-fetch-dest")
    if mode == "navigate" and what == "document":
        return None
    return Refusal(403, "expected a request of the page itself, got one of another site")
