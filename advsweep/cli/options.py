"""Options that several commands share, and shell completion of arguments.

A parameter with one of these names, which a command does not describe itself, is:

Arguments:
    [KEY=VALUE]... (overrides): Config keys with their values, as `advsweep keys` lists them,
        or a sweep file (FILE.yaml).
    RUN (run): A run's id, the start of its identity, or 'last'.
    RUN...|SWEEP (targets): Runs (ids, starts of identities, 'last'), or a sweep for all its runs.
    [SWEEP] (sweep): Only this sweep.

Options:
    --store URL $ADVSWEEP_STORE: The store: a path, or postgresql://USER@HOST/DATABASE.
    --format (how): Choose the output format.
    --config-dir DIR (config_dirs): Search this folder of config groups first.
    --jobs, -j N >= 1: Run at most this many at once (default: one a core).
    --dry-run: Start nothing; print the resolved config, or the runs and their time.
    --force: Train finished runs again as new attempts.
    --retries N >= 0: Retry a failed run up to N times from its last checkpoint.
    --run-code: Let the verifier 'code' run programs of a model here (or ADVSWEEP_RUN_CODE=1).
    --trust-store: Start the training commands recorded in the store; they may do anything that
        you may do on this machine.
    --where EXPR: Select runs: 'estimator=fade,grpo group_size>=8'.
    --samples, -n N >= 1: Samples per problem.
    --set KEY=VALUE (fields): Set a key of evaluation, task, generation, model or backend:
        evaluation.temperature=0.6; choose the sampler, generation=vllm, or the protocol,
        evaluation=greedy; may be repeated.

`--install-completion` sets up completion: typer offers the returned words that begin with what is
typed, and `advsweep.cli.app.main` prints no `AdvsweepError` meanwhile.
"""

from __future__ import annotations

import re
from pathlib import Path
from typing import TYPE_CHECKING, Literal

import typer

from advsweep.yaml_files import YAML_SUFFIXES

if TYPE_CHECKING:
    from advsweep.store import Store as OpenedStore

# Number of newest runs offered; older ones must be typed.
OFFERED = 50

# The shell executes the completed word, so names that need quoting are left out.
_PLAIN_WORD = re.compile(r"[\w.@%+,/][\w.@%+,:/=-]*")


def complete_component() -> list[str]:
    """Complete the name of an estimator, task, method or experiment."""
    from advsweep.sweep.registry import config_groups

    with config_groups() as groups:
        kinds = ("estimator", "task", "method", "experiment")
        return list(dict.fromkeys(name for kind in kinds for name in groups.members(kind)))


def complete_override(context: typer.Context, incomplete: str) -> list[str]:
    """Complete the member of a config group: `+experiment=tw` offers matching experiments.

    In a list (`estimator=grpo,fa`) the last item is completed. A word without a key is completed
    to a sweep file in this folder (`mine.yaml`). Other keys have no completion.
    """
    from advsweep.sweep.registry import config_groups

    key, equals, value = incomplete.partition("=")
    # bash splits words at "=" and expects the value alone.
    given = context.params.get("overrides") or []
    if not equals and given[-1:] == ["="]:
        key, value = "".join(given[-2:-1]), incomplete
    elif not equals and given and "=" not in given[-1] and given[-2:-1] != ["="]:
        key, value = given[-1], incomplete
    elif not equals:
        files = (p.name for p in sorted(Path().iterdir()) if p.name.endswith(YAML_SUFFIXES))
        return [name for name in files if _PLAIN_WORD.fullmatch(name) and name[0] != "."]
    chosen, comma, _ = value.rpartition(",")
    head = f"{key}=" if equals else ""
    group = key.lstrip("+")
    with config_groups(context.params.get("config_dirs") or ()) as groups:
        members = groups.members(group) if group in groups.names else []
    return [f"{head}{chosen}{comma}{name}" for name in members]


def complete_sweep(context: typer.Context) -> list[str]:
    """Complete a sweep's name."""
    with _store(context) as store:
        return _sweeps(store)


def complete_run(context: typer.Context) -> list[str]:
    """Complete the id of one of the newest runs."""
    with _store(context) as store:
        return _runs(store)


def complete_target(context: typer.Context) -> list[str]:
    """Complete a sweep's name or a run's id."""
    with _store(context) as store:
        return [*_sweeps(store), *_runs(store)]


def _sweeps(store: OpenedStore) -> list[str]:
    return [sweep.name for sweep in store.sweeps.select() if _PLAIN_WORD.fullmatch(sweep.name)]


def _runs(store: OpenedStore) -> list[str]:
    return [str(run.id) for run in store.runs.select(limit=OFFERED)]


def _store(context: typer.Context) -> OpenedStore:
    from advsweep.store import open_store

    return open_store(context.params.get("store"), create=False)


# By the name of the parameter; others are completed as `Annotated` says.
COMPLETIONS = {
    "overrides": complete_override,
    "run": complete_run,
    "sweep": complete_sweep,
    "targets": complete_target,
}

ListFormat = Literal["table", "csv", "json"]
RecordFormat = Literal["text", "json"]


def trust_commands(trust_store: bool) -> None:
    """Record that the user trusts the store to name the commands of runs."""
    if trust_store:
        from advsweep.backends.command.template import allow_stored_templates

        allow_stored_templates()


def give_consent(run_code: bool) -> None:
    """Record the consent given by `--run-code` for this process and its children."""
    if run_code:
        from advsweep.tasks.verifiers import base

        base.give_consent()
