"""The table of all commands, each in a module of its own in this package.

`advsweep --help` and completion read this table and import no command.
"""

from __future__ import annotations

from typing import NamedTuple


class Command(NamedTuple):
    """A row of the table.

    Attributes:
        module: the module in this package whose function of the same name is the command; it ends
            with an underscore where Python has the word (`import_`). Its `EXAMPLES` end the help.
        summary: the first line of the function's docstring.
    """

    module: str
    summary: str


# In the order of `advsweep --help`.
COMMANDS: dict[str, dict[str, Command]] = {
    "Train": {
        "init": Command("init", "Write a sweep file, a Makefile for CI and a README."),
        "run": Command("run", "Train one run and print a summary."),
        "sweep": Command("sweep", "Train every combination of values, or resume it."),
        "judge": Command("judge", "Judge an estimator: checks, a rate, a race against RLOO."),
        "eval": Command("eval_", "Evaluate a model, or the weights of runs, on a task."),
    },
    "Watch": {
        "ls": Command("ls", "List runs, newest first; or sweeps, or evaluated models."),
        "status": Command("status", "Show how many runs are done, running or failed, and why."),
        "serve": Command("serve", "Show a sweep in a browser, live; stop and restart its runs."),
        "show": Command("show", "Show a run: what is special about its config, and its results."),
        "logs": Command("logs", "Print the log of a run's process."),
        "stop": Command("stop", "Stop runs after each has written a checkpoint."),
        "retry": Command("retry", "Restart runs that failed, were stopped or never started."),
    },
    "Compare": {
        "report": Command("report", "Compare estimators in a table with 95 % intervals."),
        "plot": Command("plot", "Draw figures of runs with 95 % intervals over seeds."),
        "claims": Command("claims", "Test claims against the runs of a store."),
        "replay": Command("replay", "Show what every estimator makes of recorded rollouts."),
        "audition": Command("audition", "Show what a few updates by each estimator do to a model."),
        "audit": Command("audit", "Check a printed table: what cannot be, what is settled."),
        "samples": Command("samples", "Show what a model wrote: prompts, answers and verdicts."),
    },
    "Data": {
        "import": Command("import_", "Turn logs of another trainer into runs of the store."),
        "export": Command("export", "Write weights or tables of runs, or send runs to a tracker."),
        "merge": Command("merge", "Copy the contents of another store into this one."),
        "rename": Command("rename", "Give a sweep another name."),
        "note": Command("note", "Note something of a sweep, or print its note."),
        "tag": Command("tag", "Tag a sweep, or print its tags."),
        "rm": Command("rm", "Delete runs with their records, checkpoints and folders."),
        "select": Command("select", "Sort problems into levels by how often a model solves them."),
    },
    "Inspect": {
        "help": Command("help_", "Print the help of a command, or of all."),
        "list": Command("list_", "List estimators, tasks, methods, experiments, plug-ins, ..."),
        "describe": Command("describe", "Describe a component, or a word of a table."),
        "keys": Command("keys", "List or search the config keys: default, range, meaning."),
        "doctor": Command("doctor", "Show what is installed, what is missing and how to get it."),
        "version": Command("version", "Print the version."),
    },
    "Advanced": {
        "worker": Command("worker", "Train open runs of a store until none is left."),
        "db": Command("db", "Upgrade the store's schema or print its version."),
        "schema": Command("schema", "Print a JSON schema of sweep files, or of a document."),
    },
}

BY_NAME = {name: command for panel in COMMANDS.values() for name, command in panel.items()}
