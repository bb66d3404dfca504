"""The database of runs, metrics and evaluations; SQLite by default, PostgreSQL by URL.

    store = open_store()  # ./advsweep.db, made if it is not there
    [run_id] = store.add_runs([NewRun(...)])
    if store.claim(run_id, Owner.current()):
        store.add_points(run_id, [("reward/mean", 1, 0.31)])
        store.finish(run_id, Status.DONE)

Nothing in it knows components: configs are plain mappings. Never imports torch.
"""

from advsweep.store.owners import Owner
from advsweep.store.records import (
    AnalysisRecord,
    CheckpointRecord,
    EvaluationRecord,
    Failure,
    NewAnalysis,
    NewEvaluation,
    NewRun,
    ProblemCounts,
    RunLine,
    RunOutline,
    RunRecord,
    Status,
    SweepRecord,
    parse_status,
)
from advsweep.store.store import Store, open_store

__all__ = [
    "AnalysisRecord",
    "CheckpointRecord",
    "EvaluationRecord",
    "Failure",
    "NewAnalysis",
    "NewEvaluation",
    "NewRun",
    "Owner",
    "ProblemCounts",
    "RunLine",
    "RunOutline",
    "RunRecord",
    "Status",
    "Store",
    "SweepRecord",
    "open_store",
    "parse_status",
]
