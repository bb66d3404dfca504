"""Runs programs on a SandboxFusion server (https://github.com/bytedance/SandboxFusion)."""

from __future__ import annotations

import json
import os
import urllib.request
from typing import Any

from advsweep.tasks.verifiers.sandbox.inside.main import STARTED
from advsweep.tasks.verifiers.sandbox.order import Order, Run
from advsweep.tasks.verifiers.sandbox.script import script

SANDBOX_TOKEN = "ADVSWEEP_SANDBOX_TOKEN"
"""The environment variable with the server's access token, if it wants one."""

REMOTE_SECONDS = 20.0
"""What a server may take beyond a program's time."""


def run_remotely(url: str, order: Order, seconds: float) -> Run:
    """Has a server run a program and its tests, which it gets by the standard input.

    So neither the tests nor the word stand in a file that the program can read, and the program
    has a process of its own there as well.
    """
    message = json.dumps(order.message())
    head = {"folder": None, "length": len(message), "seconds": seconds}
    settings: dict[str, Any] = {"limits": [], "root": None}
    request = {
        "code": script(settings, portable=True),
        "stdin": json.dumps(head) + "\n" + message,
        "language": "python",
        "run_timeout": seconds,
    }
    call = urllib.request.Request(
        url, json.dumps(request).encode(), {"Content-Type": "application/json"}
    )
    if token := os.environ.get(SANDBOX_TOKEN):
        # Not where the server redirects to.
        call.add_unredirected_header("Authorization", f"Bearer {token}")
    try:
        with urllib.request.urlopen(call, timeout=seconds + REMOTE_SECONDS) as response:
            result = json.load(response)["run_result"]
            status, output = result["status"], result["stdout"] or ""
    except (OSError, ValueError, KeyError, TypeError) as error:
        return Run(failure=f"the sandbox at {url} gave no result ({error!r})"[:200])
    if status == "Finished" and not output.startswith(STARTED.decode()):
        return Run(failure=f"the sandbox at {url} did not start the program")
    return Run(passed=output == f"{STARTED.decode()}{order.word}\n")
