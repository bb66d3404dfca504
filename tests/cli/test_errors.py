"""Every mistake of a user gets one clear line on stderr and exit code 2; so do damaged stores."""

from __future__ import annotations

import shutil
import sqlite3
import subprocess
import sys

import pytest

from advsweep.store import open_store
from advsweep.store.checks import find_damage

MISTAKES = {
    "unknown estimator": (["run", "estimator=grop"], ["grop", "grpo"]),
    "unknown key": (["run", "estimator=fade", "estimator.h_stra=1"], ["h_stra", "h_star"]),
    "value out of range": (
        ["run", "estimator=asym_grpo", "estimator.delta=0"],
        ["estimator.delta", "> 0", "0"],
    ),
    "swept values in a run": (["run", "seed=0,1"], ["seed", "advsweep sweep"]),
    "grammar that makes no grid": (["sweep", "optimizer.lr=interval(0,1)"], ["interval"]),
    "unknown experiment": (["sweep", "+experiment=dmo"], ["dmo", "demo"]),
    "no store to read": (["ls"], ["advsweep.db", "--store"]),
    "unknown option": (["report", "--nope"], ["No such option: --nope", "`advsweep report -h`"]),
    "unknown command": (["reprot"], ["'reprot'", "'report'", "`advsweep -h`"]),
    "guessed command": (
        ["watch", "demo"],
        ["'watch'; did you mean `advsweep status demo --watch`?"],
    ),
    "missing argument": (["describe"], ["NAME", "`advsweep describe -h`"]),
    "option of a wrong kind": (["sweep", "-j", "x\ny"], ["expected a valid integer", "x\\ny"]),
    "config folder that is not there": (["run", "--config-dir", "nowhere"], ["nowhere"]),
}


@pytest.mark.parametrize("mistake", MISTAKES)
def test_a_mistake_is_one_line_and_exit_code_2(mistake, refused):
    arguments, words = MISTAKES[mistake]
    refused(words, *arguments)


@pytest.mark.parametrize("place", ["start", "within", "end"])
def test_an_interrupt_is_one_line(place):
    """As Ctrl-C while modules are imported, in a command, or while exit handlers run."""
    body = {
        "start": "sys.modules['advsweep.cli.app'] = Interrupting('app')",
        "within": "sys.modules['advsweep.cli.commands.ls'] = Interrupting('ls')",
        "end": "atexit.register(signal.raise_signal, signal.SIGINT)",
    }[place]
    program = f"""
import atexit, signal, sys, types
class Interrupting(types.ModuleType):
    def __getattr__(self, name):
        raise KeyboardInterrupt
{body}
sys.argv = ["advsweep", "{"ls" if place == "within" else "--version"}"]
from advsweep.cli import main
main()
"""
    done = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, check=False
    )
    assert (done.returncode, done.stderr) == (130, "advsweep: interrupted\n")


@pytest.mark.parametrize("place", ["start", "within"])
def test_a_termination_is_one_line(place):
    """As SIGTERM of a batch system while modules are imported, or in a command."""
    module = {"start": "advsweep.cli.app", "within": "advsweep.cli.commands.ls"}[place]
    program = f"""
import os, signal, sys, types
class Terminating(types.ModuleType):
    def __getattr__(self, name):
        os.kill(os.getpid(), signal.SIGTERM)
        raise AttributeError(name)
sys.modules[{module!r}] = Terminating("x")
sys.argv = ["advsweep", "{"ls" if place == "within" else "--version"}"]
from advsweep.cli import main
main()
"""
    done = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, check=False
    )
    assert (done.returncode, done.stderr) == (143, "advsweep: terminated\n")


def test_a_forked_process_is_terminated_without_a_word():
    program = """
import os, signal
from advsweep.cli import _announce_termination
_announce_termination()
if (child := os.fork()) == 0:
    os.kill(os.getpid(), signal.SIGTERM)
print(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]))
"""
    done = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, check=False
    )
    assert (done.stdout, done.stderr) == ("-15\n", "")


@pytest.mark.security
@pytest.mark.parametrize(
    "url",
    [
        *("postgresql:/u:c4nary@h/db", "u:c4nary@h", "host=h password=c4nary"),
        *("postgresql//u:c4nary@h/db", "postgresql://u:c4nary@h:port/db", "mysql://u:c4nary@h/d"),
    ],
)
def test_a_mistyped_store_does_not_show_its_password(url, in_process, monkeypatch):
    code, out, err = in_process("ls", "--store", url)
    assert code == 2
    assert "c4nary" not in out + err
    monkeypatch.setenv("ADVSWEEP_STORE", url)
    code, out, err = in_process("report", "demo")
    assert code == 2
    assert "c4nary" not in out + err


def test_lack_of_memory_is_one_line(in_process, monkeypatch):
    def fail(*_: object, **__: object) -> None:
        raise RuntimeError("[enforce fail] DefaultCPUAllocator: can't allocate memory: 4 TB.")

    monkeypatch.setattr("advsweep.cli.commands.ls.open_store", fail)
    code, _, err = in_process("ls")
    assert code == 2
    assert err.startswith("advsweep: out of memory (")
    assert "less" in err


def test_debug_shows_the_traceback(advsweep):
    done = advsweep("run", "estimator=grop", "--debug")
    assert done.returncode != 0
    assert "Traceback" in done.stderr
    assert "ConfigError" in done.stderr


def test_a_store_that_is_no_database(advsweep, tmp_path):
    (tmp_path / "notes.txt").write_text("not a database, but long enough to be read as one\n" * 99)
    for command in (["ls"], ["report"], ["run", "backend=fake", "steps=1"]):
        done = advsweep(*command, "--store", "notes.txt")
        assert done.returncode == 2, done.stderr
        assert "notes.txt" in done.stderr
        assert "Traceback" not in done.stderr
    assert (tmp_path / "notes.txt").read_text().startswith("not a database")


def test_an_option_that_does_not_fit_says_what_was_got(in_process):
    code, out, err = in_process("ls", "--format", "foo")
    assert (code, out) == (2, "")
    assert "'--format': 'foo' is not one of 'table', 'csv', 'json';" in err
    assert "Value error" not in err
    assert "Input should" not in err


def test_a_run_with_an_id_larger_than_any(in_process):
    code, out, err = in_process("show", "9" * 23)
    assert (code, out) == (2, "")
    assert f"no run '{'9' * 23}'" in err


@pytest.mark.parametrize("column", ["pass@{}", "pass@1[level={}]", "collapse/acr@first{}"])
def test_a_column_with_a_number_larger_than_any(column, in_process):
    for digits in (23, 5000):
        name = column.format("9" * digits)
        code, out, err = in_process("report", "two", "--columns", name)
        assert (code, out) == (2, "")
        assert err.startswith("advsweep: ")


# Each has a value of a wrong kind, a document of a wrong kind, or a reference to nothing.
DAMAGED = {
    "UPDATE runs SET heartbeat = 'soon'": ("ls", "runs has 'soon' in the column heartbeat"),
    "UPDATE runs SET created = 9e999": ("show 1", "runs has inf in the column created"),
    "UPDATE runs SET status = 'odd'": ("status", "runs has 'odd' in the column status"),
    "UPDATE runs SET failure = -1": ("report two", "runs has '-1' in the column failure"),
    "UPDATE evaluations SET settings = '[1]'": (
        "report two",
        "evaluations has '[1]' in the column settings",
    ),
    "UPDATE problem_sets SET problems = '{}'": (
        "export two --to csv --table problems",
        "problem_sets has '{}' in the column problems",
    ),
    "DELETE FROM problem_sets": ("report two", "evaluations refers to one of problem_sets"),
}


@pytest.mark.parametrize("statement", DAMAGED)
def test_the_value_is_named(statement, fake_folder, advsweep, tmp_path):
    command, words = DAMAGED[statement]
    file = tmp_path / "advsweep.db"
    shutil.copy(fake_folder / "advsweep.db", file)
    with sqlite3.connect(file) as connection:
        connection.execute(statement)
    connection.close()
    done = advsweep(*command.split())
    assert done.returncode == 2
    (line,) = done.stderr.splitlines()
    assert line.startswith(f"advsweep: the store {file} is damaged: expected what advsweep writes")
    assert words in line


def test_a_sound_store_has_no_damage(fake_folder):
    with (
        open_store(str(fake_folder / "advsweep.db"), create=False) as store,
        store.database.read() as connection,
    ):
        assert find_damage(connection) is None
