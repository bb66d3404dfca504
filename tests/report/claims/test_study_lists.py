"""The lists of claims of the studies name rows that their sweep files train, and columns."""

from __future__ import annotations

import functools
from datetime import UTC, datetime
from pathlib import Path

import pytest

from advsweep.config.groups import conf_directory
from advsweep.report.claims.kinds import Trend
from advsweep.report.claims.lists import Claim, claim_lists, read_claim_list
from advsweep.report.data.columns import parse_column
from advsweep.report.data.runs import (
    Filter,
    Group,
    group_by,
    group_runs,
    parse_where,
    show_key,
    value_of,
)
from advsweep.store import RunRecord, Status
from advsweep.sweep.planning.plan import make_plan
from advsweep.yaml_files import read_yaml

STUDIES = ("avspo", "a_grae", "aapo", "two_stage", "fade", "leaderboard")
FLOORS = {"base", "guess", "walker"}
LISTS = {name: read_claim_list(claim_lists()[name]).claims for name in STUDIES}
CLAIMS = [(name, claim) for name, claims in LISTS.items() for claim in claims]
FILES = {
    str(read_yaml(path).get("sweep", {}).get("name")): path
    for path in (conf_directory() / "experiment").rglob("*.yaml")
}


@functools.cache
def planned(sweep: str) -> tuple[RunRecord, ...]:
    """The runs of a sweep, as if all were done."""
    experiment = FILES[sweep].relative_to(conf_directory() / "experiment").with_suffix("")
    plan = make_plan([f"+experiment={experiment.as_posix()}"], fetch=False)
    return tuple(
        RunRecord(
            id=number,
            identity=planned.run.identity,
            attempt=1,
            config_hash=planned.run.config_hash,
            seed=planned.run.seed,
            estimator=planned.config["estimator"]["name"],
            step=planned.run.steps,
            steps=planned.run.steps,
            config=planned.config,
            backend=planned.config["backend"]["name"],
            status=Status.DONE,
            sweeps=(sweep,),
            created=datetime(2026, 1, 1, tzinfo=UTC),
            stop_requested=False,
            directory=Path(),
            **dict.fromkeys(("stage", "started", "finished", "heartbeat", "host", "pid")),
            **dict.fromkeys(("failure", "stopping", "error", "traceback")),
        )
        for number, planned in enumerate(plan.runs)
    )


def rows_of(claim: Claim) -> list[tuple[Group, list[RunRecord]]]:
    assert claim.sweep is not None
    runs = [run for run in planned(claim.sweep) if all(_holds(run, f) for f in claim.where)]
    assert runs, "no run matches 'where'"
    if claim.rows is None:
        return group_runs(runs)
    return group_by(runs, claim.rows)


def _holds(run: RunRecord, own: Filter) -> bool:
    return own.holds(value_of(run, own.key))


def fitting(rows: list[tuple[Group, list[RunRecord]]], name: str) -> list[Group]:
    if "=" not in name:
        return [group for group, _ in rows if show_key(next(iter(group.values()))) == name]
    filters = parse_where(name)
    return [
        group for group, _ in rows if all(f.key in group and f.holds(group[f.key]) for f in filters)
    ]


@pytest.mark.slow
@pytest.mark.parametrize(("name", "claim"), CLAIMS, ids=[f"{n}-{c.id}" for n, c in CLAIMS])
def test_a_claim_names_one_row_each_of_what_its_sweep_trains(name: str, claim: Claim) -> None:
    rows = rows_of(claim)
    kind = claim.kind
    for row in kind.rows:
        if row in FLOORS:
            continue
        found = fitting(rows, row)
        assert len(found) == 1, (row, found, [group for group, _ in rows])
    if isinstance(kind, Trend):
        assert len(rows) >= 3
    for column in kind.columns:
        assert parse_column(column) is not None, column


def test_ids_are_those_of_the_catalogue_or_ours() -> None:
    # The leaderboard's claims are ours; the study of the two-stage view also judges A-GRAE's last.
    own = {
        "avspo": ("AV",),
        "a_grae": ("AG",),
        "aapo": ("AA",),
        "two_stage": ("TS", "AG21"),
        "fade": ("FA",),
        "leaderboard": ("easy-", "middle-", "hard-"),
    }
    for name in STUDIES:
        for claim in LISTS[name]:
            assert claim.id.startswith((*own[name], "ours-")), claim.id
