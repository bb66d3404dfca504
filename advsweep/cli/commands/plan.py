"""`advsweep plan`: show every run of a sweep before anything starts."""

from __future__ import annotations

from typing import Annotated

import typer

from advsweep.cli import options
from advsweep.cli.options import ListFormat
from advsweep.cli.plan_output import LISTED


def plan(
    overrides: options.Overrides = None,
    name: options.NewSweepName = None,
    jobs: options.Jobs = None,
    store: options.Store = None,
    config_dir: options.ConfigDir = None,
    force: Annotated[
        bool, typer.Option("--force", help="Plan as if finished runs were trained again.")
    ] = False,
    every: Annotated[
        bool, typer.Option("--all", help=f"List all runs in a table, not only {LISTED}.")
    ] = False,
    output: options.Listing = ListFormat.TABLE,
) -> None:
    """Takes the arguments of `advsweep sweep`. Builds and checks every run and looks it up in the
    store. Prints which runs are done, running or missing, and which are duplicates. Estimates the
    remaining time from finished runs of the same shape (backend, model, task, rollout policy, group
    size, prompts per step), or from the times that a paper reports for its sweep file; without
    either, prints the backend's first guess. For a search, prints the search space, the trials so
    far and the best of them; for a tuned sweep, the scores so far and the runs of its present
    stage. Creates no store and downloads nothing: an identity that depends on
    missing data begins with a question mark.

    Examples:
        advsweep plan estimator=grpo,fade seed=0,1,2
        advsweep plan +experiment=demo --all
    """
    from advsweep.cli import execution, search_output, tuning_output
    from advsweep.cli.overrides import check_overrides
    from advsweep.cli.plan_output import print_plan
    from advsweep.sweep.planning.plan import make_plan
    from advsweep.sweep.search.study import plan_search, refuse_search
    from advsweep.sweep.tuning import plan_tuning

    overrides = check_overrides(overrides)
    study = plan_search(overrides or [], config_dirs=config_dir or (), name=name)
    if study is not None:
        execution.refuse_force(force, "a search")
        execution.check_outcomes(study.example)
        search_output.print_search(study, store, jobs, output, every=every)
        return
    tuning = plan_tuning(overrides, config_dirs=config_dir or (), name=name, fetch=False)
    if tuning is not None:
        execution.refuse_force(force, "a tuned sweep")
        execution.check_outcomes(tuning.test)
        tuning_output.print_tuned_plan(tuning, store, jobs, output, every=every)
        return
    planned = make_plan(overrides or [], config_dirs=config_dir or (), name=name, fetch=False)
    refuse_search(planned)
    execution.check_outcomes(planned)
    print_plan(planned, store, jobs, output, force=force, every=every)
