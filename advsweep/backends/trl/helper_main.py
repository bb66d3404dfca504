"""A helper process, which trains a run together with the process that starts it (`helpers`)."""

from __future__ import annotations

import json
import logging
import os
import signal
import sys
import traceback
import warnings
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import replace
from multiprocessing.connection import Connection
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch

from advsweep.backends.reporter import SilentReporter
from advsweep.backends.trl.ranks import Ranks
from advsweep.errors import AdvsweepError, ConfigError
from advsweep.tasks.verifiers.isolation import end_with_parent

if TYPE_CHECKING:
    from advsweep.backends.base import Run


def main() -> int:
    """Train the run that the first message names; the argument is the descriptor of the pipe."""
    # The first process is asked to stop, and its helpers stop where it does.
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, signal.SIG_IGN)
    end_with_parent(os.getppid())
    descriptor = int(sys.argv[1])
    os.set_inheritable(descriptor, False)
    connection = Connection(descriptor)
    # The first process shows the same warnings.
    warnings.simplefilter("ignore")
    logging.disable(logging.WARNING)
    try:
        order = json.loads(connection.recv_bytes())
    except EOFError:
        return 1
    ranks = Ranks(order["rank"], order["count"], [connection])
    try:
        _train(order, ranks)
    except EOFError:
        return 1  # the first process has ended
    except BaseException as error:  # noqa: BLE001 - whatever it is, the first process reports it
        if not isinstance(error, AdvsweepError):
            traceback.print_exc()
        with suppress(OSError):  # the first process has ended
            ranks.send_failure(error)
        return 1
    return 0


def _train(order: Mapping[str, Any], ranks: Ranks) -> None:
    from advsweep.backends.build import build_run
    from advsweep.backends.trl.options import TrlOptions

    run: Run = build_run(order["config"])
    if run.definition != order["definition"]:
        raise ConfigError(
            "backend.processes: expected the same run in all processes, and its config makes "
            "another one in a new process; a component that is not installed may be the reason"
        )
    run.task.check_consent()
    run = replace(run, learning_rate_scale=order["learning_rate_scale"])
    assert isinstance(run.backend, TrlOptions)
    torch.set_num_threads(run.backend.threads)
    from advsweep.backends.trl import training

    # The first process reports.
    training.train(run, run.backend, Path(order["directory"]), SilentReporter(), ranks)


if __name__ == "__main__":
    code = main()
    sys.stderr.flush()
    # Other processes wait for its end, which takes a second more with all libraries.
    os._exit(code)
