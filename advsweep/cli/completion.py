"""Shell completion of arguments and options.

`advsweep --install-completion` sets it up: typer offers those of the returned words that begin
with what is typed, and `advsweep.cli.app.main` prints no `AdvsweepError` meanwhile.
"""

from __future__ import annotations

import re
from pathlib import Path
from typing import TYPE_CHECKING

import typer

from advsweep.names import YAML_SUFFIXES

if TYPE_CHECKING:
    from advsweep.store import Store

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
    typed = context.params.get("overrides") or []
    if not equals and typed[-1:] == ["="]:
        key, value = "".join(typed[-2:-1]), incomplete
    elif not equals and typed and "=" not in typed[-1] and typed[-2:-1] != ["="]:
        key, value = typed[-1], incomplete
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


def _sweeps(store: Store) -> list[str]:
    return [name for name in store.sweeps.names() if _PLAIN_WORD.fullmatch(name)]


def _runs(store: Store) -> list[str]:
    return [str(run.id) for run in store.runs.select(limit=OFFERED)]


def _store(context: typer.Context) -> Store:
    from advsweep.store import open_store

    return open_store(context.params.get("store"), create=False)
