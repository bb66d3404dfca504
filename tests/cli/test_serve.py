"""`advsweep serve` as a command: its address, its errors, its end."""

from __future__ import annotations

import json
import os
import re
import shutil
import signal
import socket
import subprocess
import sys
import time
import urllib.request
from pathlib import Path

import pytest

from advsweep.store import Status, open_store


def test_a_taken_port_an_unknown_sweep_and_two_sweeps_are_one_line(in_process):
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        code, out, err = in_process("serve", "--port", str(port))
        assert (code, out) == (2, "")
        assert err.startswith(f"advsweep: --port: expected a free port, got {port} (")
        assert err.count("\n") == 1
    for words, arguments in (
        ("no sweep 'nonesuch'", ["nonesuch"]),
        ("expected one sweep at most, got first, second", ["first", "second"]),
    ):
        code, out, err = in_process("serve", *arguments)
        assert (code, out) == (2, "")
        assert words in err
        assert err.count("\n") == 1


def test_without_a_store_nothing_is_served(refused):
    refused(["there is no store"], "serve")


@pytest.mark.parametrize("missing", ["starlette", "uvicorn"])
def test_a_missing_extra_is_one_line_that_installs_it(in_process, monkeypatch, missing):
    monkeypatch.setitem(sys.modules, missing, None)
    code, out, err = in_process("serve")
    assert (code, out) == (2, "")
    assert f"advsweep serve needs {missing}, which is not installed; install it with `" in err
    assert missing in err.partition("`")[2]
    assert err.count("\n") == 1


@pytest.mark.slow
@pytest.mark.security
def test_a_page_is_served_until_ctrl_c_and_a_restart_outlives_it(fake_folder, tmp_path):
    folder = tmp_path / "copy"
    shutil.copytree(fake_folder, folder)
    # A browser: it notes its arguments, and what the file has that they name.
    browser = tmp_path / "browser"
    browser.write_text('#!/bin/sh\necho "$@" > "$0.arguments"\ncp -p "${1#file://}" "$0.html"\n')
    browser.chmod(0o700)
    with open_store(str(folder / "advsweep.db")) as store:
        again = store.runs.new_attempt(store.runs.find("last").id)
        serving = subprocess.Popen(
            [sys.executable, "-P", "-m", "advsweep", "serve", "two", "--port", "0", "--open"],
            cwd=folder,
            env=os.environ | {"BROWSER": f"{browser} %s"},
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        assert serving.stdout is not None
        address = serving.stdout.readline().strip()
        match = re.fullmatch(r"http://127\.0\.0\.1:(\d+)/([\w-]{43})/page\?sweep=two", address)
        assert match is not None, address
        base = address.partition("page?")[0]
        with urllib.request.urlopen(f"{base}state?sweep=two") as answer:
            assert json.load(answer)["rows"][str(again)]["actions"] == {"retry": "start"}
        order = json.dumps({"sweep": "two", "runs": [again]}).encode()
        headers = {"Content-Type": "application/json"}
        request = urllib.request.Request(f"{base}retry", order, headers)
        with urllib.request.urlopen(request) as answer:
            assert json.load(answer) == {"message": f"Started a retry of 1 run ({again})."}
        serving.send_signal(signal.SIGINT)
        out, err = serving.communicate(timeout=60)
        assert (serving.returncode, out) == (130, "")
        assert err.splitlines()[-1] == "advsweep: interrupted"
        assert match[2] not in err
        # Other users of the machine see the arguments of a process, but not a private file.
        arguments = Path(f"{browser}.arguments").read_text().strip()
        assert match[2] not in arguments
        assert f"url={address}" in Path(f"{browser}.html").read_text()
        assert Path(f"{browser}.html").stat().st_mode & 0o077 == 0
        assert not Path(arguments.removeprefix("file://")).exists()
        while store.runs.find(str(again)).status is not Status.DONE:
            time.sleep(0.1)
