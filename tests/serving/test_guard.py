"""Who is answered: hosts, tokens, and pages of other sites."""

from __future__ import annotations

import pytest

from advsweep.serving.guard import check_request, new_token

pytestmark = pytest.mark.security

TOKEN = "secret"
HOST = {"host": "127.0.0.1:8765"}
JSON_WORDS = {"content_type": "application/json"}


def status(method: str, path: str, **headers: str) -> int:
    """The status of the refusal; 200 if there is none."""
    named = {name.replace("_", "-"): value for name, value in headers.items()}
    _, refusal = check_request(method, path, HOST | named, TOKEN)
    return 200 if refusal is None else refusal.status


def test_the_rest_of_the_path_is_what_is_asked_for():
    for path, rest in [("/secret/", "/"), ("/secret/page", "/page"), ("/secret", "/")]:
        assert check_request("GET", path, HOST, TOKEN) == (rest, None)


@pytest.mark.parametrize(
    "path", ["/", "", "/page", "/secre/page", "/secrets/page", "//secret/page", "/é/page"]
)
def test_a_wrong_token_is_refused(path):
    rest, refusal = check_request("GET", path, HOST, TOKEN)
    assert rest == ""
    assert refusal is not None
    assert refusal.status == 403
    assert "token" in refusal.message
    assert TOKEN not in refusal.message


def test_only_names_of_this_machine_are_answered():
    """A page of evil.example whose name leads to 127.0.0.1 would be of the server's own origin."""
    for host in ("127.0.0.1:8765", "127.0.0.1", "localhost:9000"):
        assert status("GET", "/secret/", host=host) == 200
    for host in ("evil.example:8765", "127.0.0.1.evil.example", "localhost.evil:80", "", "[::1]:1"):
        assert status("GET", "/secret/", host=host) == 403


def test_orders_of_other_sites_are_refused():
    own = {"origin": "http://127.0.0.1:8765", "sec_fetch_site": "same-origin"}
    assert status("POST", "/secret/stop", **JSON_WORDS, **own) == 200
    assert status("POST", "/secret/stop", **JSON_WORDS) == 200  # no browser
    for other in (
        {"origin": "http://evil.example"},
        {"origin": "null"},
        {"origin": "https://127.0.0.1:8765"},
        {"origin": "http://127.0.0.1:9999"},  # another program of this machine
        {"origin": "http://localhost:8765"},
        {"sec_fetch_site": "cross-site"},
        {"sec_fetch_site": "same-site"},
    ):
        assert status("POST", "/secret/stop", **JSON_WORDS, **(own | other)) == 403, other


def test_an_order_is_json_which_no_form_can_send():
    for kind in ("", "text/plain", "application/x-www-form-urlencoded", "multipart/form-data"):
        assert status("POST", "/secret/stop", content_type=kind) == 415
    assert status("POST", "/secret/stop", content_type="application/json; charset=utf-8") == 200


def test_other_sites_may_link_to_the_page_but_not_embed_it():
    link = {"sec_fetch_mode": "navigate", "sec_fetch_dest": "document"}
    assert status("GET", "/secret/", sec_fetch_site="cross-site", **link) == 200
    assert status("GET", "/secret/", sec_fetch_site="none", **link) == 200
    assert (
        status("GET", "/secret/state", sec_fetch_site="same-origin", sec_fetch_mode="cors") == 200
    )
    for what in ({"sec_fetch_dest": "iframe"}, {"sec_fetch_mode": "no-cors"}):
        for site in ("cross-site", "same-site"):
            assert status("GET", "/secret/", sec_fetch_site=site, **(link | what)) == 403


def test_tokens_differ_and_are_long():
    tokens = {new_token() for _ in range(100)}
    assert len(tokens) == 100
    assert min(map(len, tokens)) >= 43  # 256 bits in letters of 6
