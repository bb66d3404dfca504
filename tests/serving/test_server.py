"""What the server answers, over its socket."""

from __future__ import annotations

import json
import socket

import pytest

from advsweep.errors import ConfigError
from advsweep.failures import Failure
from advsweep.serving.app import listen
from advsweep.store import Owner, Status, open_store

pytestmark = pytest.mark.security

HOSTILE = "<script>window.hurt=1</script>\x1b]52;c;aGk=\x07\u202e"


def test_a_page_its_state_and_the_list_of_sweeps(training, site):
    run = training.finished()
    status, headers, body = site.ask("")
    assert status == 200
    assert b'<a href="page?sweep=demo">demo</a>' in body
    assert b"1 done" in body
    status, headers, body = site.ask("page?sweep=demo")
    assert status == 200
    assert b"<h1>demo</h1>" in body
    assert site.ask("page?sweep=demo", if_none_match=headers["etag"])[0] == 304
    state = site.state()
    assert state["page"] == headers["etag"].strip('"')
    assert state["text"] == "1 run, 1 done; 20 of 20 steps"
    assert state["rows"] == {str(run): {"status": "done", "step": 20, "steps": 20, "actions": {}}}
    _, headers, _ = site.ask("state?sweep=demo")
    assert site.ask("state?sweep=demo", if_none_match=headers["etag"])[0] == 304
    training.add(seed=1)
    assert site.ask("state?sweep=demo", if_none_match=headers["etag"])[0] == 200


def test_an_empty_store_has_a_list_and_a_page(site):
    assert b"No sweep yet" in site.ask("")[2]
    assert b"has no runs to report" in site.ask("page")[2]


def test_wrong_tokens_hosts_and_origins_get_no_word_of_the_store(training, site):
    training.finished()
    order = {"sweep": "demo", "runs": [1]}
    for status, headers, body in (
        site.ask("page?sweep=demo", token="wrong"),
        site.ask("state?sweep=demo", token=""),
        site.ask("page?sweep=demo", host="evil.example"),
        site.ask("state?sweep=demo", sec_fetch_site="cross-site", sec_fetch_mode="no-cors"),
        site.ask("stop", order, origin="http://evil.example"),
        site.ask("retry", order, sec_fetch_site="same-site"),
        site.ask("stop", order, token="wrong"),
    ):
        assert status == 403
        assert b"demo" not in body
        assert headers["referrer-policy"] == "no-referrer"
        assert "access-control-allow-origin" not in headers
    assert site.restarts.started == []
    assert training.store.leases.stops_requested([1]) == set()


def test_every_answer_forbids_to_embed_keep_or_leak_it(site):
    for path in ("", "page", "state", "state?sweep=none", "nothing"):
        _, headers, _ = site.ask(path)
        assert headers["content-security-policy"] == "frame-ancestors 'none'"
        assert headers["referrer-policy"] == "no-referrer"
        assert headers["cache-control"] == "no-store"
        assert headers["cross-origin-resource-policy"] == "same-origin"
        assert headers["x-content-type-options"] == "nosniff"
        assert "server" not in headers


def test_runs_are_stopped_and_restarted_by_their_ids(training, site):
    running, failed, done = training.add(seed=0), training.add(seed=1), training.finished(seed=2)
    training.train(running, [1])
    training.train(failed, [1, 2])
    training.end(failed, Status.FAILED, failure=Failure.ERROR, error="loss is not finite")
    rows = site.state()["rows"]
    assert rows[str(running)]["actions"] == {"stop": "stop"}
    assert rows[str(failed)]["actions"] == {"retry": "retry"}
    assert rows[str(done)]["actions"] == {}
    assert site.state()["notes"] == [
        f"run {failed} (grpo seed=1) failed at step 2/20: loss is not finite"
    ]
    status, _, body = site.ask("stop", {"sweep": "demo", "runs": [running, failed, done]})
    assert status == 200
    assert "a stop of 1 running" in json.loads(body)["message"]
    assert training.store.leases.stops_requested([running, failed, done]) == {running}
    rows = site.state()["rows"]
    assert rows[str(running)] == {
        "status": "running, stopping",
        "step": 1,
        "steps": 20,
        "actions": {},
    }
    _, _, body = site.ask("retry", {"sweep": "demo", "runs": [running, failed, done]})
    assert site.restarts.started == [[failed]]
    assert "Started" in json.loads(body)["message"]
    _, _, body = site.ask("retry", {"sweep": None, "runs": [done]})
    assert json.loads(body)["message"] == f"Nothing to retry: run {done} is done."
    assert site.state()["restarts"] == [f"retry of [{failed}]: in progress"]


def test_a_waiting_run_is_started_if_nothing_runs_and_else_kept_from_starting(training, site):
    waiting, other = training.add(seed=0), training.add(seed=1)
    assert site.state()["rows"][str(waiting)]["actions"] == {"retry": "start"}
    training.train(other, [1])
    assert site.state()["rows"][str(waiting)]["actions"] == {"stop": "stop"}
    site.ask("stop", {"sweep": "demo", "runs": [waiting]})
    assert site.state()["rows"][str(waiting)]["status"] == "pending, stopped"
    assert site.state()["rows"][str(waiting)]["actions"] == {"retry": "start"}


@pytest.mark.parametrize(
    "order",
    [
        {},
        [],
        {"runs": [1]},
        {"sweep": "demo", "runs": []},
        {"sweep": "demo", "runs": "1"},
        {"sweep": "demo", "runs": ["1"]},
        {"sweep": "demo", "runs": [True]},
        {"sweep": "demo", "runs": [-1]},
        {"sweep": ["demo"], "runs": [1]},
        {"sweep": "demo", "runs": [1], "executor": "slurm"},
        {"sweep": "demo", "runs": [1] * 500_000},
    ],
)
def test_what_is_no_order_is_refused(training, site, order):
    training.finished()
    for verb in ("stop", "retry"):
        assert site.ask(verb, order)[0] == 400
    assert site.restarts.started == []


def test_an_order_names_runs_of_its_sweep_alone(training, site):
    mine = training.add()
    training.sweep = "other"
    other = training.add("fade")
    for runs in ([other], [mine, other], [99]):
        status, _, body = site.ask("retry", {"sweep": "demo", "runs": runs})
        assert status == 404
        assert f"no run {runs[-1]} in sweep 'demo'" in json.loads(body)["message"]
    assert site.ask("retry", {"sweep": "nothing", "runs": [mine]})[0] == 404
    assert site.restarts.started == []


def test_an_unknown_sweep_gets_near_names(training, site):
    training.finished()
    status, _, body = site.ask("page?sweep=dmeo")
    assert status == 404
    assert b"did you mean 'demo'" in body
    assert "did you mean 'demo'" in json.loads(site.ask("state?sweep=dmeo")[2])["message"]


def test_a_store_that_vanishes_and_returns(training, site, tmp_path):
    training.finished()
    assert site.ask("page?sweep=demo")[0] == 200
    file = tmp_path / "advsweep.db"
    file.rename(tmp_path / "away.db")
    for path in ("", "page?sweep=demo", "state?sweep=demo"):
        status, _, body = site.ask(path)
        assert status == 503
        assert b"deleted or moved away" in body
    (tmp_path / "away.db").rename(file)
    assert site.ask("state?sweep=demo")[0] == 200
    assert site.reported == []


def test_a_lost_run_is_seen_though_nothing_was_written(training, site):
    run = training.add()
    training.train(run, [1])
    assert site.state()["running"] == 1
    # As if the process had died: another one started with its number.
    gone = Owner.current()
    with open_store("advsweep.db") as other, other.database.write() as connection:
        connection.exec_driver_sql("UPDATE runs SET process_started = 1")
    assert gone.started != 1
    state = site.state()
    assert state["rows"][str(run)]["status"] == "lost"
    assert state["rows"][str(run)]["actions"] == {"retry": "retry"}


def test_texts_of_a_store_are_neither_markup_nor_control_characters(training, site):
    run = training.add("grpo", 0, task={"name": HOSTILE})
    training.train(run, [1])
    training.end(run, Status.FAILED, failure=Failure.ERROR, error=HOSTILE)
    training.store.sweeps.set_note("demo", HOSTILE)
    for path in ("", "page?sweep=demo", "state?sweep=demo"):
        _, _, body = site.ask(path)
        text = body.decode()
        if path.startswith("state"):
            text = "\n".join(json.loads(body)["notes"])
            assert "window.hurt" in text
        else:
            assert "<script>window" not in text
        assert not {"\x1b", "\x07", "\u202e"} & set(text)


def test_the_server_listens_on_the_loopback_interface_alone():
    with listen(0) as listener:
        address, port = listener.getsockname()
        assert address == "127.0.0.1"
        with pytest.raises(ConfigError, match=f"expected a free port, got {port}"):
            listen(port)


def test_without_a_port_another_one_is_taken_if_the_usual_one_is_not_free(monkeypatch):
    with listen(0) as listener:
        taken = listener.getsockname()[1]
        monkeypatch.setattr("advsweep.serving.app.PORT", taken)
        with listen(None) as other:
            assert other.getsockname()[1] != taken
            assert isinstance(other, socket.socket)
