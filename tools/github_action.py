"""The steps of the GitHub Action of `action.yml`: install advsweep; run a sweep, report, judge.

    python3 -P tools/github_action.py install|run

Inputs are environment variables and reach commands as single arguments behind `--` or `=`. What
a store or a sweep file says is printed while workflow commands (`::name::`) are switched off, and
stands in the summary escaped, or as indented code. Only the standard library is imported, since
nothing is installed before.
"""

from __future__ import annotations

import json
import os
import secrets
import subprocess
import sys
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

MOST_BYTES = 900_000  # of a summary; GitHub shows none above 1 MiB
LAST_LINES = 20


def install() -> int:
    """Install advsweep from this checkout into an environment of its own; name the store."""
    environment = _environment()
    subprocess.run([sys.executable, "-P", "-m", "venv", str(environment)], check=True)
    pip = [str(environment / "bin" / "python"), "-P", "-m", "pip", "install", "--quiet"]
    if torch := _input("TORCH"):
        index = _input("TORCH_INDEX")
        subprocess.run([*pip, *_option("--index-url", index), "--", torch], check=True)
    extras = _input("EXTRAS")
    source = Path(os.environ["GITHUB_ACTION_PATH"]).resolve()
    subprocess.run([*pip, "--", f"{source}[{extras}]" if extras else str(source)], check=True)
    if further := _input("REQUIREMENTS"):
        requirements = environment / "requirements.txt"
        requirements.write_text(f"{further}\n", encoding="utf-8")
        subprocess.run([*pip, "-r", str(requirements)], check=True)
    store = _store()
    is_file = store is not None and "://" not in store
    path = Path(store).absolute() if is_file and store else None
    runs = os.environ.get("ADVSWEEP_RUNS") or (path and path.with_name(f"{path.stem}-runs"))
    _write_outputs(store=path, runs=runs)
    return 0


def run() -> int:
    """Train what is missing, write the report and the summary, and return the exit code."""
    folder = Path(os.environ["RUNNER_TEMP"]) / "advsweep-report"
    folder.mkdir(exist_ok=True)
    table, page = folder / "report.md", folder / "report.html"
    name = _input("NAME")
    parts: list[str] = []
    code = 0
    if settings := _lines("SWEEP"):
        code, name, messages = _sweep(settings, name, folder / "sweep.json")
        if code:
            parts.append(f"**`advsweep sweep` ended with exit code {code}.**\n\n{_code(messages)}")
    if name or not settings:
        judged, text, messages = _report(name)
        parts += [text, f"**Statements**\n\n{_code(messages)}" if messages else ""]
        code = code or judged
        with page.open("wb") as file:
            options = [*_store_option(), *_selection(), "--format=html", "--", *_named(name)]
            if _call(["report", *options], file).returncode:
                page.unlink()
    parts = [part.strip() for part in parts if part.strip()]
    summary = "\n\n".join(["## Report of advsweep", *parts]) + "\n"
    if len(summary.encode()) > MOST_BYTES:
        summary = "## Report of advsweep\n\nIt is too long for this page; the artifact has it.\n"
    table.write_text(summary, encoding="utf-8")
    with Path(os.environ["GITHUB_STEP_SUMMARY"]).open("a", encoding="utf-8") as file:
        file.write(summary)
    _write_outputs(sweep=name, report=page if page.is_file() else None, table=table)
    return code


def _sweep(settings: Sequence[str], name: str, result: Path) -> tuple[int, str, list[str]]:
    """Run a sweep; return its exit code, its name, and its last messages."""
    jobs = _option("--jobs", _input("JOBS"))
    options = [*_option("--name", name), *jobs, *_store_option(), "--format=json"]
    last: deque[str] = deque(maxlen=LAST_LINES)
    with result.open("wb") as file:
        done = _call(["sweep", *options, "--", *settings], file, last.append)
    text = result.read_text(encoding="utf-8")
    return done.returncode, json.loads(text)["sweep"] if text else "", list(last)


def _report(name: str) -> tuple[int, str, list[str]]:
    """Print a report; return its exit code, its Markdown, and the verdicts or the error."""
    statements = [f"--assert={statement}" for statement in _lines("ASSERT")]
    options = [*_store_option(), *_selection(), *statements, "--format=markdown", "--full"]
    messages: list[str] = []
    path = Path(os.environ["RUNNER_TEMP"]) / "advsweep-report" / "table.md"
    with path.open("wb") as file:
        done = _call(["report", *options, "--", *_named(name)], file, messages.append)
    text = path.read_text(encoding="utf-8")
    _show(text)
    return done.returncode, text, messages


def _call(
    arguments: Sequence[str], output: object, listen: Callable[[str], None] | None = None
) -> subprocess.Popen[str]:
    """Run advsweep to its end; its messages go to the log, line by line.

    Args:
        output: where its stdout goes.
        listen: receives each line of stderr.
    """
    program = str(_environment() / "bin" / "advsweep")
    with subprocess.Popen(
        [program, *arguments], stdout=output, stderr=subprocess.PIPE, text=True, encoding="utf-8"
    ) as process:
        assert process.stderr is not None
        for line in process.stderr:
            _show(line)
            if listen:
                listen(line.rstrip("\n"))
    return process


@contextmanager
def _commands_off() -> Iterator[None]:
    """Let no line of the log be a workflow command, such as `::error::`, whatever prints it."""
    token = secrets.token_hex(16)
    _show(f"::stop-commands::{token}\n")
    try:
        yield
    finally:
        _show(f"::{token}::\n")


def _show(text: str) -> None:
    sys.stdout.write(text)
    sys.stdout.flush()


def _write_outputs(**values: object) -> None:
    """Set the outputs of the step; None is an empty text."""
    with Path(os.environ["GITHUB_OUTPUT"]).open("a", encoding="utf-8") as file:
        for key, value in values.items():
            mark = secrets.token_hex(16)
            file.write(f"{key}<<{mark}\n{'' if value is None else value}\n{mark}\n")


def _code(lines: Sequence[str]) -> str:
    """Return lines as a block of code, which no text in it can end."""
    return "\n".join(f"    {line}" for line in lines)


def _environment() -> Path:
    return Path(os.environ["RUNNER_TEMP"]) / "advsweep"


def _input(name: str) -> str:
    return os.environ.get(f"INPUT_{name}", "").strip()


def _lines(name: str) -> list[str]:
    return [line.strip() for line in _input(name).splitlines() if line.strip()]


def _option(name: str, value: str) -> list[str]:
    return [f"{name}={value}"] if value else []


def _named(name: str) -> list[str]:
    return [name] if name else []


def _store() -> str | None:
    """Return the store that is given; None for that of ADVSWEEP_STORE, which may be a secret."""
    default = None if os.environ.get("ADVSWEEP_STORE") else "advsweep.db"
    return _input("STORE") or default


def _store_option() -> list[str]:
    return _option("--store", _store() or "")


def _selection() -> list[str]:
    names = ("rows", "columns", "baseline")
    chosen = [option for name in names for option in _option(f"--{name}", _input(name.upper()))]
    return [*chosen, *(f"--where={line}" for line in _lines("WHERE"))]


if __name__ == "__main__":
    with _commands_off():
        try:
            code = {"install": install, "run": run}[sys.argv[1]]()
        except subprocess.CalledProcessError as error:  # pip has said why
            code = error.returncode
    sys.exit(code)
