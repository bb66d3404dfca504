"""A search as Optuna has it, for its plots and its dashboard."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from advsweep.config.compose import check_literal
from advsweep.errors import ConfigError, NotFoundError, nearest
from advsweep.sweep.search.study import plan_search

if TYPE_CHECKING:
    import optuna

    from advsweep.store import Store


def to_optuna(
    store: Store,
    sweep: str,
    *,
    storage: str | None = None,
    config_dirs: Sequence[str | Path] = (),
) -> optuna.Study:
    """The trials of a search as an `optuna.Study`; each has the ids of its runs as `runs`.

    It is a copy: the store stays the truth, and nothing of it is changed.

    Args:
        storage: where Optuna is to keep it, such as `sqlite:///optuna.db`, for
            optuna-dashboard; in memory when None. It must have no study of that name.
        config_dirs: folders of config groups that the search was started with.

    Raises:
        NotFoundError: there is no such sweep.
        ConfigError: it was no search, or its overrides hold interpolations.
    """
    specs = {record.name: record.spec for record in store.sweeps.select()}
    if sweep not in specs:
        raise NotFoundError(f"no sweep '{sweep}'; {nearest(sweep, specs)}")
    check_literal(specs[sweep]["overrides"], f"overrides of sweep {sweep}")
    study = plan_search(specs[sweep]["overrides"], config_dirs=config_dirs, name=sweep)
    if study is None:
        raise ConfigError(f"{sweep}: expected a search, got a sweep without one")
    return study.search.study(study.results(store), study.dimensions, storage=storage, name=sweep)
