"""The commands by panel, and where each is defined."""

from __future__ import annotations

from typing import NamedTuple


class Entry(NamedTuple):
    """A command: its function as `module:function`, and its summary in one line."""

    place: str
    summary: str


COMMANDS: dict[str, dict[str, Entry]] = {
    "Train": {
        "init": Entry("init:init", "Write a sweep file, a Makefile for CI and a README."),
        "run": Entry("train:run", "Train one run and print a summary."),
        "sweep": Entry("train:sweep", "Train every combination of values, or resume it."),
        "eval": Entry(
            "evaluation:evaluate", "Evaluate a model, or the weights of runs, on a task."
        ),
    },
    "Watch": {
        "ls": Entry("watch:ls", "List runs, newest first."),
        "status": Entry("watch:status", "Show how many runs are done, running or failed, and why."),
        "show": Entry("watch:show", "Show a run: config, environment, metrics and evaluations."),
        "logs": Entry("watch:logs", "Print the log of a run's process."),
        "stop": Entry("watch:stop", "Stop runs after each has written a checkpoint."),
        "retry": Entry("train:retry", "Restart runs that failed, were stopped or never started."),
    },
    "Compare": {
        "report": Entry("report:report", "Compare estimators in a table with 95 % intervals."),
        "plot": Entry("plot:plot", "Draw figures of runs with 95 % intervals over seeds."),
        "claims": Entry("claims:claims", "Test claims against the runs of a store."),
        "replay": Entry("replay:replay", "Show what every estimator makes of recorded rollouts."),
        "samples": Entry(
            "watch:samples", "Show what a model wrote: prompts, answers and verdicts."
        ),
    },
    "Data": {
        "import": Entry("data:import_", "Turn logs of another trainer into runs of the store."),
        "export": Entry(
            "data:export", "Write weights or tables of runs, or send runs to a tracker."
        ),
        "merge": Entry("data:merge", "Copy the contents of another store into this one."),
        "rm": Entry("data:rm", "Delete runs with their records, checkpoints and folders."),
        "select": Entry(
            "evaluation:select", "Sort problems into levels by how often a model solves them."
        ),
    },
    "Inspect": {
        "list": Entry(
            "catalogue:list_", "List estimators, tasks, methods, experiments, plug-ins, ..."
        ),
        "describe": Entry(
            "describe:describe", "Describe an estimator, a task or another component."
        ),
        "keys": Entry("catalogue:keys", "List or search the config keys: default, range, meaning."),
        "doctor": Entry(
            "doctor:doctor", "Show what is installed, what is missing and how to get it."
        ),
    },
    "Advanced": {
        "worker": Entry("worker:worker", "Train open runs of a store until none is left."),
        "db": Entry("data:db", "Upgrade the store's schema or print its version."),
        "schema": Entry("catalogue:schema", "Print a JSON schema of sweep files, for editors."),
    },
}
"""Every command, in the order of `advsweep --help`; places are relative to `advsweep.cli`."""
