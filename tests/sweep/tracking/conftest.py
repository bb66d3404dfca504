"""Runs to track, and a stand-in for wandb's server that records what the real client sends."""

from __future__ import annotations

import gzip
import hashlib
import json
import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

import pytest

from advsweep.store import NewRun


@pytest.fixture
def new_run():
    """A planned run with the fields given; its identity follows from its seed."""

    def make(seed=0, **fields):
        values = {
            "identity": hashlib.sha256(str(seed).encode()).hexdigest(),
            "config_hash": "c0ffee" * 10,
            "config": {"estimator": {"name": "grpo", "epsilon": 1e-4}, "seed": seed, "fast": True},
            "steps": 10,
            "estimator": "grpo",
            "backend": "fake",
        }
        return NewRun(seed=seed, **{**values, **fields})

    return make


class WandbServer(ThreadingHTTPServer):
    """Answers as much of the protocol as a client needs to be content.

    Attributes:
        runs: by id, what the client said of each run: `groupName`, `tags`, `first_config`, ...
        history: by id, the rows of each run, in the order in which they came.
        summaries: by id, the newest of each run.
        ends: by id, the exit code of each run that was finished.
        requests: how many there were.
    """

    daemon_threads = True

    def __init__(self):
        super().__init__(("127.0.0.1", 0), _Handler)
        self.runs: dict[str, dict[str, Any]] = {}
        self.history: dict[str, list[dict[str, Any]]] = {}
        self.summaries: dict[str, dict[str, Any]] = {}
        self.ends: dict[str, int] = {}
        self.requests = 0

    @property
    def url(self):
        return f"http://127.0.0.1:{self.server_port}"

    def answer(self, path, asked):
        self.requests += 1
        if path.endswith("/file_stream"):
            self._stream(path.split("/")[-2], asked)
            return {}
        query, variables = asked.get("query", ""), asked.get("variables", {})
        if "query RunResumeStatus" in query:
            return {"data": {"model": {"bucket": self._resumed(variables["name"])}}}
        if "mutation UpsertBucket" in query:
            return {"data": {"upsertBucket": self._upserted(variables)}}
        if "mutation CreateRunFiles" in query:
            files = [{"name": n, "uploadUrl": f"{self.url}/{n}"} for n in variables["files"]]
            made = {"runID": variables["run"], "uploadHeaders": [], "files": files}
            return {"data": {"createRunFiles": made}}
        return {"data": {}}

    def _stream(self, run, asked):
        rows = asked.get("files", {}).get("wandb-history.jsonl", {}).get("content", [])
        self.history.setdefault(run, []).extend(map(json.loads, rows))
        for summary in asked.get("files", {}).get("wandb-summary.json", {}).get("content", []):
            self.summaries[run] = json.loads(summary)
        if asked.get("complete"):
            self.ends[run] = asked["exitcode"]

    def _resumed(self, run):
        if run not in self.runs:
            return None
        rows = self.history.get(run, [])
        return {
            "id": run,
            "name": run,
            "summaryMetrics": "{}",
            "logLineCount": 0,
            "historyLineCount": len(rows),
            "eventsLineCount": 0,
            "historyTail": json.dumps([json.dumps(row) for row in rows[-1:]]),
            "eventsTail": "[]",
            "config": "{}",
            "tags": [],
            "wandbConfig": json.dumps({"t": 1}),
            "notes": "",
        }

    def _upserted(self, variables):
        known = self.runs.setdefault(variables["name"], {})
        known.setdefault("first_config", json.loads(variables["config"] or "{}"))
        known.update((key, value) for key, value in variables.items() if value)
        project = {"id": "p", "name": known["project"], "entity": {"id": "e", "name": "us"}}
        bucket = {"id": "b", "name": variables["name"], "project": project}
        return {"bucket": bucket, "inserted": True}


class _Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    server: WandbServer

    def do_POST(self):
        body = self.rfile.read(int(self.headers.get("Content-Length", 0)))
        if self.headers.get("Content-Encoding") == "gzip":
            body = gzip.decompress(body)
        is_json = "json" in self.headers.get("Content-Type", "")
        asked = json.loads(body) if is_json and body else {}
        answer = json.dumps(self.server.answer(self.path, asked)).encode()
        self.send_response(200)
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(answer)))
        self.end_headers()
        self.wfile.write(answer)

    def do_GET(self):
        self.do_POST()

    def do_PUT(self):
        self.do_POST()

    def log_message(self, format, *args):
        """The test has nothing to read of that."""


@pytest.fixture
def wandb_server(monkeypatch, tmp_path):
    """The server; wandb of processes started meanwhile knows no other, nor the user's key."""
    server = WandbServer()
    thread = threading.Thread(target=server.serve_forever)
    thread.start()
    own = {
        "WANDB_BASE_URL": server.url,
        "WANDB_API_KEY": "0" * 40,
        "WANDB_CONFIG_DIR": str(tmp_path / "wandb-config"),
        "WANDB_CACHE_DIR": str(tmp_path / "wandb-cache"),
        "WANDB_ERROR_REPORTING": "false",
    }
    for name, value in own.items():
        monkeypatch.setenv(name, value)
    for name in ("WANDB_MODE", "WANDB_PROJECT", "WANDB_ENTITY", "WANDB_DIR"):
        monkeypatch.delenv(name, raising=False)
    yield server
    server.shutdown()
    thread.join()
    server.server_close()
