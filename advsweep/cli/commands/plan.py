"""`advsweep plan`: shows every run of a sweep before anything starts."""

from __future__ import annotations

from typing import Annotated

import typer

from advsweep.cli.shared import options
from advsweep.cli.shared.options import ListFormat
from advsweep.cli.shared.plan_output import LISTED


def plan(
    overrides: options.Overrides = None,
    name: options.NewSweepName = None,
    jobs: options.Jobs = None,
    store: options.Store = None,
    config_dir: options.ConfigDir = None,
    force: Annotated[
        bool, typer.Option("--force", help="As if what is done were to be trained again.")
    ] = False,
    every: Annotated[
        bool, typer.Option("--all", help=f"All runs in a table, not the first {LISTED} alone.")
    ] = False,
    output: options.Listing = ListFormat.TABLE,
) -> None:
    """Show every run that `sweep` with the same arguments comes to; start nothing.

    Every run is built and checked, and looked up in the store: what is done, running or
    missing, what was asked for twice, and how long the rest should take by earlier runs of
    the same shape (backend, model, task, rollout policy, group size, prompts per step) or, before
    there are any, by the times that a paper prints for its sweep file. Of a search it shows what
    is searched over, the trials so far and the best of them. A store that does not exist is not
    made, and nothing is fetched: where data is not on this machine, identities are not known yet
    and begin with a question mark.
    """
    from advsweep.cli.shared import search_output
    from advsweep.cli.shared.plan_output import print_plan
    from advsweep.sweep.planning.plan import make_plan
    from advsweep.sweep.search.study import plan_search, refuse_search

    study = plan_search(overrides or [], config_dirs=config_dir or (), name=name)
    if study is not None:
        search_output.refuse_force(force)
        search_output.print_search(study, store, jobs, output, every=every)
        return
    planned = make_plan(overrides or [], config_dirs=config_dir or (), name=name, fetch=False)
    refuse_search(planned)
    print_plan(planned, store, jobs, output, force=force, every=every)
