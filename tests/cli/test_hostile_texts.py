"""One hostile text in every text field: what each command prints of it, on a terminal."""

from __future__ import annotations

import csv
import hashlib
import io
import json
import os
import re
import sqlite3
import sys
import unicodedata
from collections.abc import Callable, Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any, Literal, NamedTuple, get_args, get_origin, get_type_hints
from xml.etree import ElementTree

import pytest

from advsweep.cli.completion import complete_run, complete_sweep
from advsweep.store import (
    AnswerSample,
    Failure,
    NewAnalysis,
    NewEvaluation,
    NewRun,
    Owner,
    ProblemCounts,
    Status,
    Store,
    open_store,
)
from advsweep.store.tables import SWEEPS
from tests.cli.conftest import commands
from tests.report.latex_tables import check_latex_tables

pytestmark = pytest.mark.security

HOSTILE = (
    "=1+1|x<script>alert(1)</script>![i](http://evil.test/i.png)`c`"
    "\x1b]52;c;ZXZpbA==\x07\x1b[31337m\x9b2J\x00\x7f\r$\\frac{$^^4d%\\input{x}\nFORGED"
    "\u202etxt\u2066\u200b\U000e0041"
)
"""A formula, HTML, an image, code, escape sequences, LaTeX, a line of its own, other directions."""

# A run whose estimator is no name is refused as a whole: tests/store/test_foreign.py.
NAME = "hostile"
"""Part of a folder's name, which has no NUL."""

STYLE = re.compile(r"\x1b\[[0-9;]*m")
"""Our own styles on stdout."""

DRAWN = re.compile(r"\x1b\[[0-9;?]*[A-Za-z]|\r")
"""What draws a progress bar, which only stderr has."""


class Printed(NamedTuple):
    """What a command wrote to a terminal, and its exit code."""

    code: int
    out: str
    err: str


Command = Callable[..., Printed]


def new_run(seed: int, estimator: str) -> NewRun:
    config = {
        "estimator": {"name": estimator, "note": HOSTILE, HOSTILE: HOSTILE},
        "task": {"name": HOSTILE, "title": HOSTILE, "prompt": HOSTILE},
        "model": {"name": HOSTILE, "path": HOSTILE, "surrogate": "\ud800"},
        "backend": {"name": "fake"},
        "optimizer": {"match": HOSTILE, "match_reference": {"name": HOSTILE}},
        "evaluation": {"n": 4, "k": [1, 2]},
        "group_size": 8,
        "prompts_per_step": 4,
        "steps": 4,
        "seed": seed,
    }
    config_hash = hashlib.sha256(repr((estimator, seed > 1)).encode()).hexdigest()
    return NewRun(
        identity=hashlib.sha256(f"{config_hash}{seed}".encode()).hexdigest(),
        config_hash=config_hash,
        seed=seed,
        config=config,
        steps=4,
        estimator=estimator,
        backend="fake",
    )


def evaluation(run_id: int | None, subject: str, step: int, settings: dict) -> NewEvaluation:
    return NewEvaluation(
        identity=hashlib.sha256(f"{run_id} {step}".encode()).hexdigest(),
        subject=subject,
        run_id=run_id,
        step=step,
        task=HOSTILE,
        settings={"n": 4, "k": [1, 2], "temperature": 1.0, "seed": 0, **settings},
        problems=[
            ProblemCounts(
                problem_id=f"{HOSTILE}{i}",
                prompt=HOSTILE,
                level=i,
                n=4,
                c=1 + i + (run_id or 0) % 2,
                distinct=2,
                unscorable=0,
                answer_entropy=0.5,
            )
            for i in range(2)
        ],
    )


def answer(of: NewEvaluation) -> AnswerSample:
    problem = of.problems[0]
    return AnswerSample(
        problem_id=problem.problem_id,
        prompt=problem.prompt,
        level=problem.level,
        answer=f"{HOSTILE}\ud800",
        length=len(HOSTILE),
        read=HOSTILE,
        reward=1.0,
    )


def fill(store: Store) -> None:
    """Runs 1 to 4 are done, with two rows; 5 has failed, 6 is running."""
    store.sweeps.add(HOSTILE, {"tracking": {"name": "tensorboard", "folder": HOSTILE}})
    with store.database.write() as connection:
        connection.execute(SWEEPS.update().values(note=HOSTILE, tags=[HOSTILE, "ours"]))
    runs = [new_run(seed, name) for name in (NAME, "grpo") for seed in (0, 1)]
    runs += [new_run(2, NAME), new_run(3, NAME)]
    ids = store.runs.add(runs, HOSTILE)
    for run_id in ids:
        store.runs.set_environment(
            run_id,
            {
                "advsweep": HOSTILE,
                "python": HOSTILE,
                "command": HOSTILE,
                "host": HOSTILE,
                "cpu": HOSTILE,
                "packages": {"torch": HOSTILE, HOSTILE: HOSTILE},
                HOSTILE: HOSTILE,
                "git": {"commit": HOSTILE, "dirty": True},
            },
        )
        store.leases.claim(run_id, Owner.current())
        names = (HOSTILE, f"{HOSTILE}/mean", "reward/mean", "collapse/acr", "optim/lr")
        store.metrics.record(run_id, [(n, s, s / (run_id + 5)) for n in names for s in range(1, 5)])
        store.metrics.set_summaries(run_id, {HOSTILE: 1.0})
        store.leases.heartbeat(run_id, step=4, stage=HOSTILE)
        store.checkpoints.add(run_id, 4, Path(f"/nowhere/{HOSTILE}"))
        own = evaluation(run_id, f"{HOSTILE}{run_id}", 4, {"sampler": HOSTILE})
        store.evaluations.add(own, [answer(own)])
        store.analyses.add(
            run_id,
            NewAnalysis(
                kind="weights", step=4, settings={HOSTILE: HOSTILE}, result={HOSTILE: HOSTILE}
            ),
        )
    for run_id in ids[:4]:
        store.leases.finish(run_id, Status.DONE)
    store.leases.finish(
        ids[4],
        Status.FAILED,
        failure=Failure.ERROR,
        error=HOSTILE,
        traceback=f"Traceback\n{HOSTILE}",
    )
    model = evaluation(None, f"model:{HOSTILE}", 0, {"model": HOSTILE, "top_p": 1.0})
    store.evaluations.add(model, [answer(model)])


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """A folder with a hostile store, another one, claims, a data file, and a sweep file."""
    folder = tmp_path_factory.mktemp("hostile")
    for name in ("advsweep.db", "other.db"):
        with open_store(str(folder / name)) as store:
            fill(store)
            logs = [run.directory / "log.txt" for run in store.runs.select()]
        with sqlite3.connect(folder / name) as connection:
            connection.execute("UPDATE runs SET host = ?, error = ?", (HOSTILE, HOSTILE))
            connection.execute("UPDATE runs SET stage = ? WHERE status = 'running'", (HOSTILE,))
        for log in logs:
            log.parent.mkdir(parents=True, exist_ok=True)
            log.write_bytes(HOSTILE.encode() + b"\xff\n")
    row = {"question": f"{HOSTILE}\ud800", "answer": "1", "id": HOSTILE}
    (folder / "data.jsonl").write_text(json.dumps(row) + "\n")
    rollouts = {"step": 1, "prompt": f"{HOSTILE}\ud800", "rewards": [1, 0], HOSTILE: HOSTILE}
    (folder / "rollouts.jsonl").write_text(f"{json.dumps(rollouts)}\n{HOSTILE}\n")
    with (folder / "table.csv").open("w", newline="") as file:
        table = csv.DictWriter(file, ["name", "group", "benchmark", "value", "size", "samples"])
        table.writeheader()
        cell = dict.fromkeys(("name", "group", "benchmark"), HOSTILE.replace("\x00", ""))
        table.writerow({**cell, "value": "23.4", "size": "30", "samples": "1"})
    claim = {"says": HOSTILE, "source": HOSTILE, "setting": HOSTILE, "seeds": 2}
    claims = {
        "title": HOSTILE,
        "claims": [
            {**claim, "id": f"{HOSTILE}{name}", "statement": f"reward/mean[{name}] > 0"}
            for name in ("grpo", "none")
        ],
    }
    (folder / "claims.yaml").write_text(json.dumps(claims))
    (folder / "conf" / "experiment").mkdir(parents=True)
    first = "# =1+1|<script>\u202e\u200b"  # YAML allows no escape sequences
    (folder / "conf" / "experiment" / "odd.yaml").write_text(f"{first}\nname: odd\n")
    return folder


@pytest.fixture
def terminal(folder, monkeypatch, called):
    """Runs a command in this process, in the folder, with streams that say they are terminals."""
    monkeypatch.chdir(folder)
    monkeypatch.setenv("TERM", "xterm-256color")
    monkeypatch.setenv("COLUMNS", "200")
    monkeypatch.setattr(type(sys.stdout), "isatty", lambda _: True)
    return lambda *arguments: Printed(*called(*arguments))


def controls(text: str) -> set[str]:
    """The control characters of a text but for line breaks and tabs."""
    categories = ("Cc", "Cf", "Cs", "Zl", "Zp")
    return {c for c in text if unicodedata.category(c) in categories} - {"\n", "\t"}


def check_terminal(printed: Printed, *, several_lines: bool = False) -> None:
    assert printed.code in (0, 1, 2), printed.err
    assert "Traceback" not in printed.err
    assert "\x1b[31337m" not in printed.out + printed.err
    assert controls(STYLE.sub("", printed.out)) == set()
    assert controls(DRAWN.sub("", printed.err)) == set()
    lines = [*printed.err.split("\n"), *([] if several_lines else printed.out.split("\n"))]
    assert not [line for line in lines if line.startswith("FORGED")]


def check_json(text: str) -> None:
    json.loads(text)


def check_csv(text: str) -> None:
    """No cell is a formula; numbers are none."""
    rows = list(csv.reader(io.StringIO(text)))
    assert len({len(row) for row in rows}) == 1
    for cell in (cell for row in rows for cell in row):
        if cell.startswith(("=", "+", "-", "@", "\t", "\r")):
            float(cell)


def check_markdown(text: str) -> None:
    assert "<script" not in text
    assert not re.search(r"(?<!\\)\]\(", text)
    tables = re.findall(r"(?:^\|.*\n)+", text, re.MULTILINE)
    for table in tables:
        bars = {len(re.findall(r"(?<!\\)(?:\\\\)*\|", line)) for line in table.splitlines()}
        assert len(bars) == 1
    odd = [line for line in text.splitlines() if line and not line.startswith(("|", "- ", "**"))]
    assert odd == []


def check_latex(text: str) -> None:
    assert check_latex_tables(text)
    lines = [line for line in text.splitlines() if not line.startswith("%")]
    assert lines
    for line in lines:
        assert line.startswith(("  ", "\\")), "a line of its own"
        assert r"\frac" not in line
        assert r"\input" not in line
        assert "^^" not in line


def check_html(text: str) -> None:
    assert "<script>alert" not in text
    assert not re.search(r"<img", text)
    assert controls(text) <= {"\r"}
    data = re.search(r'<script type="application/json" id="data">(.*?)</script>', text, re.DOTALL)
    assert data is not None
    assert controls("".join(texts(json.loads(data[1])))) == set()


def texts(value: Any) -> Iterator[str]:
    """Every text of a JSON document."""
    if isinstance(value, str):
        yield value
    elif isinstance(value, dict):
        yield from texts([*value, *value.values()])
    elif isinstance(value, list):
        for item in value:
            yield from texts(item)


CHECKS = {
    "json": check_json,
    "csv": check_csv,
    "markdown": check_markdown,
    "latex": check_latex,
    "html": check_html,
}

NO_TEXTS = {
    "init",
    "judge",
    "keys",
    "schema",
    "db",
    "help",
    "version",
}
"""Commands that print nothing from a store, a log, a data file or a model."""

TRAIN = {
    *("run", "worker", "retry", "eval", "select", "export", "stop", "rm", "import", "rename"),
    "serve",  # tests/serving has its page
}
"""Commands whose own output is counts, the user's words, and errors, which `refused` covers."""

READ: dict[str, list[list[str]]] = {
    "ls": [["--limit=0"], ["--models"], ["--sweeps"]],
    "note": [[HOSTILE]],
    "tag": [[HOSTILE]],
    "show": [["1"], ["5"], ["6"]],
    "status": [[], [HOSTILE]],
    "logs": [["1"], ["5", "--follow"]],
    "samples": [["1"], ["--models"]],
    "report": [[], [HOSTILE], ["--assert", "reward/mean[grpo] > 0"]],
    "claims": [["claims.yaml"]],
    "audit": [["table.csv"]],
    "audition": [["1", "-e", "grpo"]],
    "merge": [["other.db", "--dry-run"]],
    "list": [["tasks", "--config-dir", "conf"], ["experiments", "--config-dir", "conf"]],
    "describe": [
        ["dataset", "--set", "data=data.jsonl", "--set", "held_out=0", "--set", "train_split=''"]
    ],
    "sweep": [["--dry-run", "estimator=grpo", f"backend={json.dumps(HOSTILE)}"]],
    "plot": [["--figure", "curves", "--metric", "reward/mean"]],
    "doctor": [["--store", HOSTILE.replace("\x00", "")]],
    "replay": [["rollouts.jsonl", "-e", "grpo,dcpo,fade"]],
    "export": [["1", "out"], [HOSTILE, "--to", "tensorboard"]],
    "eval": [["1"]],
    "retry": [["5"]],
}

REFUSED = {"merge", "sweep", "export", "eval", "retry", "claims", "audition"}
"""Commands that refuse what the store holds, in a message that quotes it."""

ONE_FORMAT = {"list": "csv", "describe": "table", "doctor": "text", "audition": "table"}
"""Commands that take seconds and print as `ls` does: they compose every config or start torch."""

SEVERAL_LINES = {"logs", "show", "describe", "note"}
"""Commands that show texts of several lines: logs, tracebacks and prompts."""


def formats(command: Callable[..., None]) -> list[str | None]:
    """What `--format` of a command can be; None alone for one without."""
    for hint in get_type_hints(command, include_extras=True).values():
        for option in getattr(hint, "__metadata__", ()):
            # In an annotation, typer keeps the first name where a default would be.
            if "--format" in (getattr(option, "default", None), *(option.param_decls or ())):
                kinds = (hint.__origin__, *get_args(hint.__origin__))
                [choices] = [kind for kind in kinds if get_origin(kind) is Literal]
                return list(get_args(choices))
    return [None]


COMMANDS = dict(commands())


def test_every_command_is_covered():
    known = {*NO_TEXTS, *TRAIN, *READ}
    assert set(COMMANDS) == known, "add a new command to READ, or say why it is not there"


def cases() -> Iterator[Any]:
    for name, lists in READ.items():
        for arguments in lists:
            for form in formats(COMMANDS[name]):
                if form not in ("png", "pdf", "parquet") and form == ONE_FORMAT.get(name, form):
                    marks = [pytest.mark.slow] if name in ONE_FORMAT else []
                    yield pytest.param(name, arguments, form, marks=marks)


@pytest.mark.parametrize(("name", "arguments", "form"), list(cases()))
def test_hostile_texts_do_no_harm(terminal, tmp_path, name, arguments, form):
    ask = [] if form is None else ["--format", form]
    page = tmp_path / "page.html"
    if form == "html":
        # No page is written to a terminal.
        ask += ["--output", str(page)]
    printed = terminal(*name.split(), *arguments, *ask)
    check_terminal(printed, several_lines=name in SEVERAL_LINES or form == "csv")
    assert printed.code < 2 or name in REFUSED, printed.err
    if printed.code < 2 and form in CHECKS:
        CHECKS[form](page.read_text("utf-8") if form == "html" else printed.out)


@pytest.mark.parametrize(
    "arguments",
    [
        ["--figure", "curves,passk"],
        ["--figure", "curves", "--metric", HOSTILE],
    ],
)
def test_figures_are_valid_and_show_texts_as_they_are(terminal, tmp_path, arguments):
    path = tmp_path / "figure.svg"
    printed = terminal("plot", HOSTILE, *arguments, "--output", str(path))
    assert printed.code == 0, printed.err
    check_terminal(printed)
    text = path.read_text(encoding="utf-8")
    assert controls(text) == set()
    assert [e for e in ElementTree.fromstring(text).iter() if e.tag.endswith("script")] == []
    assert r"$\frac{$" in text  # in a comment, beside the paths of its letters


def test_the_watched_status(terminal, monkeypatch):
    def interrupt(seconds: float) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr("time.sleep", interrupt)
    # An interrupted command ends its process at once, which is that of the tests here.
    monkeypatch.setattr("os._exit", sys.exit)
    clear, text = terminal("status", "--watch").out.partition("\x1b[2J")[::2]
    assert clear == "\x1b[H"
    assert r"\x1b]52;c;ZXZpbA==\x07" in text
    assert controls(text) == set()


def test_followed_log_of_a_running_run(terminal, folder):
    with open_store(str(folder / "advsweep.db")) as store:
        [log] = [run.directory / "log.txt" for run in store.runs.select(ids=[5])]
    before = log.read_bytes()
    try:
        log.write_bytes(b"10%\r20%\r\n\x00" * 100_000)
        printed = terminal("logs", "5", "--follow")
    finally:
        log.write_bytes(before)
    assert printed.out == "10%\n20%\n\\x00" * 100_000


@pytest.mark.parametrize("make", [os.mkfifo, lambda path: path.symlink_to("/dev/zero"), Path.mkdir])
def test_log_that_is_no_file_is_refused(terminal, folder, make):
    with open_store(str(folder / "advsweep.db")) as store:
        [log] = [run.directory / "log.txt" for run in store.runs.select(ids=[2])]
    moved = log.rename(log.with_name("moved"))
    try:
        make(log)
        printed = terminal("logs", "2")
        followed = terminal("logs", "2", "--follow")
    finally:
        log.rmdir() if log.is_dir() and not log.is_symlink() else log.unlink()
        moved.rename(log)
    assert printed.code == 2
    assert "log.txt: expected a regular file" in printed.err
    assert followed.out == ""


def test_completion_offers_plain_words(folder):
    with open_store(str(folder / "advsweep.db")) as store:
        store.sweeps.add("plain-1", {})
        for name in ("x;reboot", "--force", "=1"):
            store.sweeps.add(name, {})
        context = SimpleNamespace(params={"store": str(folder / "advsweep.db")})
        assert complete_sweep(context) == ["plain-1"]
        assert controls("".join(text for run in complete_run(context) for text in run)) == set()
        for name in ("plain-1", "x;reboot", "--force", "=1"):
            store.sweeps.remove(name)


def test_traceback_is_printable(terminal, monkeypatch, capsys):
    monkeypatch.setattr("sys.excepthook", sys.excepthook)
    terminal("--version")
    sys.excepthook(RuntimeError, RuntimeError(HOSTILE), None)
    printed = capsys.readouterr().err
    assert controls(printed) == set()
    assert "RuntimeError: =1+1" in printed
