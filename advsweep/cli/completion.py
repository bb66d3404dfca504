"""Shell completion of arguments; `--install-completion` sets it up.

Typer offers the returned words that begin with what is typed; `advsweep.cli.app.main` prints no
`AdvsweepError` meanwhile.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING

import typer

from advsweep.yaml_files import YAML_SUFFIXES

if TYPE_CHECKING:
    from advsweep.store import Store

OFFERED = 50
"""Number of newest runs offered; older ones must be typed."""

# The shell executes the completed word, so names that need quoting are left out.
_PLAIN_WORD = re.compile(r"[\w.@%+,/][\w.@%+,:/=-]*")


def complete_list() -> list[str]:
    """Complete what `advsweep list` lists."""
    from advsweep.sweep.registry import GROUPS

    groups = (f"{group}s" for group in (*GROUPS, "method", "experiment"))
    return ["plugins", "figures", *groups]


def complete_group() -> list[str]:
    """Complete a config group."""
    from advsweep.sweep.registry import GROUPS

    return list(GROUPS)


def complete_component() -> list[str]:
    """Complete the name of an estimator, task, method or experiment."""
    from advsweep.sweep.registry import config_groups

    with config_groups() as groups:
        kinds = ("estimator", "task", "method", "experiment")
        return list(dict.fromkeys(name for kind in kinds for name in groups.members(kind)))


def complete_importer() -> list[str]:
    """Complete a format's name."""
    from advsweep.logs import READERS

    return [name for name in READERS if name != "pattern"]


def complete_export_format() -> list[str]:
    """Complete a format of `advsweep export`."""
    from advsweep.sweep.registry import TRACKINGS

    return ["hf", "parquet", "csv", *(name for name in TRACKINGS if name != "none")]


def complete_claims() -> list[str]:
    """Complete the name of an experiment's list of claims."""
    from advsweep.report.claims.lists import claim_lists

    return [*claim_lists()]


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
    with config_groups(context.params.get("config_dir") or ()) as groups:
        members = groups.members(group) if group in groups.names else []
    return [f"{head}{chosen}{comma}{name}" for name in members]


def complete_figure(incomplete: str) -> list[str]:
    """Complete a figure's name; in a comma-separated list the last one."""
    from advsweep.report.figures.registry import FIGURES

    before, comma, _ = incomplete.rpartition(",")
    return [f"{before}{comma}{name}" for name in FIGURES]


def complete_sweep(context: typer.Context) -> list[str]:
    """Complete a sweep's name."""
    return _with_store(context, _sweeps)


def complete_run(context: typer.Context) -> list[str]:
    """Complete the id of one of the newest runs."""
    return _with_store(context, _runs)


def complete_target(context: typer.Context) -> list[str]:
    """Complete a sweep's name or a run's id."""
    return _with_store(context, lambda store: [*_sweeps(store), *_runs(store)])


def _with_store(context: typer.Context, offer: Callable[[Store], list[str]]) -> list[str]:
    from advsweep.store import open_store

    return offer(open_store(context.params.get("store"), create=False))


def _sweeps(store: Store) -> list[str]:
    names = (sweep.name for sweep in store.sweeps.select())
    return [name for name in names if _PLAIN_WORD.fullmatch(name)]


def _runs(store: Store) -> list[str]:
    return [str(run.id) for run in store.runs.select(limit=OFFERED)]
