"""Shell completion of arguments; `--install-completion` sets it up.

Typer offers the returned words that begin with what is typed; `advsweep.cli.app.main` prints no
`AdvsweepError` meanwhile.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import typer

from advsweep.yaml_files import YAML_SUFFIXES

if TYPE_CHECKING:
    from advsweep.store import Store

OFFERED = 50
"""Number of newest runs offered; older ones must be typed."""

_PLAIN_WORD = re.compile(r"[\w.@%+,/][\w.@%+,:/=-]*")


def complete_list() -> list[str]:
    """Complete what `advsweep list` lists."""
    from advsweep.sweep.registry import GROUPS

    groups = (f"{group}s" for group in (*GROUPS, "method", "experiment"))
    return ["plugins", "figures", *groups]


def complete_component() -> list[str]:
    """Complete the name of an estimator, task, method or experiment."""
    from advsweep.sweep.registry import config_groups

    with config_groups() as groups:
        kinds = ("estimator", "task", "method", "experiment")
        names = (name for kind in kinds for name in groups.members(kind))
        return list(dict.fromkeys(names))


def complete_importer() -> list[str]:
    """Completes a format's name."""
    from advsweep.logs import READERS

    return [name for name in READERS if name != "pattern"]


def complete_tracker() -> list[str]:
    """Completes a tracker's name."""
    from advsweep.sweep.registry import TRACKINGS

    return [name for name in TRACKINGS if name != "none"]


def complete_export_format() -> list[str]:
    """Completes a format of `advsweep export`."""
    return ["hf", "parquet", "csv", *complete_tracker()]


def complete_claims() -> list[str]:
    """Completes the name of an experiment's list of claims."""
    from advsweep.report.claims.lists import claim_lists

    return [*claim_lists()]


def complete_override(context: typer.Context, incomplete: str) -> list[str]:
    """Completes the member of a config group: `+experiment=tw` offers matching experiments.

    In a list (`estimator=grpo,fa`) the last item is completed. A word without a key is completed
    to a sweep file (`mine.yaml`). Other keys have no completion.
    """
    from advsweep.sweep.registry import config_groups

    given = context.params.get("overrides") or []
    words = [word for word in given if word != "="]
    key, equals, value = incomplete.partition("=")
    if not equals and not _awaits_value(given) and (files := _sweep_files(incomplete)):
        return files
    if not equals:  # bash splits words at "=" and expects the value alone
        key, value = words[-1] if words else "", incomplete
    chosen, comma, _ = value.rpartition(",")
    head = f"{key}=" if equals else ""
    group = key.lstrip("+")
    with config_groups(context.params.get("config_dir") or ()) as groups:
        members = groups.members(group) if group in groups.names else _components(group)
    return [f"{head}{chosen}{comma}{name}" for name in members]


def complete_words() -> list[str]:
    """Complete a config group, for `advsweep keys`."""
    from advsweep.sweep.registry import GROUPS

    return list(GROUPS)


def _awaits_value(given: Sequence[str]) -> bool:
    """Returns whether the last word is a key; bash makes `seed=1 method=` of five words."""
    last = "".join(given[-1:])
    is_value = "=" in last or given[-2:-1] == ["="]
    return last == "=" or bool(last and not is_value)


def _sweep_files(incomplete: str) -> list[str]:
    """Returns the sweep files whose path begins so, in one folder; plain words only."""
    folder, slash, begun = incomplete.rpartition("/")
    try:
        found = sorted(Path(folder + slash or ".").iterdir())
    except OSError:
        return []
    shown = [p.name for p in found if not p.name.startswith(".") and p.name.startswith(begun)]
    names = [f"{folder}{slash}{name}" for name in shown if name.endswith(YAML_SUFFIXES)]
    return [name for name in names if _PLAIN_WORD.fullmatch(name)]


def _components(key: str) -> list[str]:
    """Returns the components that a field of a task can name."""
    from advsweep.tasks.rewards import REWARDS
    from advsweep.tasks.verifiers import VERIFIERS

    registries = {"task.verifier": VERIFIERS.names, "task.reward": REWARDS.names}
    return registries[key]() if key in registries else []


def complete_figure(incomplete: str) -> list[str]:
    """Completes a figure's name; in a comma-separated list the last one."""
    from advsweep.report.figures.registry import FIGURES

    before, comma, _ = incomplete.rpartition(",")
    return [f"{before}{comma}{name}" for name in FIGURES]


def complete_sweep(context: typer.Context) -> list[str]:
    """Completes a sweep's name."""
    return _sweeps(_store(context))


def complete_run(context: typer.Context) -> list[tuple[str, str]]:
    """Completes the id of one of the newest runs; describes each."""
    return _runs(_store(context))


def complete_target(context: typer.Context) -> list[tuple[str, str]]:
    """Completes a sweep's name or a run's id."""
    store = _store(context)
    return [(name, "sweep") for name in _sweeps(store)] + _runs(store)


def _store(context: typer.Context) -> Store:
    """Opens the store named on the command line."""
    from advsweep.store import open_store

    return open_store(context.params.get("store"), create=False)


def _sweeps(store: Store) -> list[str]:
    """Returns the sweep names that need no quoting: the shell executes the completed word."""
    names = [sweep.name for sweep in store.sweeps.select()]
    return [name for name in names if _PLAIN_WORD.fullmatch(name)]


def _runs(store: Store) -> list[tuple[str, str]]:
    # Reading runs refuses estimators with other characters than names have.
    runs = store.runs.select(limit=OFFERED)
    return [(str(run.id), f"{run.estimator} seed={run.seed} {run.status.value}") for run in runs]
