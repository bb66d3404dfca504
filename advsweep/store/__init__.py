"""The database of runs, metrics and evaluations: SQLite by default, PostgreSQL by URL.

    store = open_store()  # ./advsweep.db, created if it does not exist
    [run_id] = store.runs.add([NewRun(...)])
    if store.leases.claim(run_id, Owner.current()):
        store.metrics.record(run_id, [("reward/mean", 1, 0.31)])
        store.leases.finish(run_id, Status.DONE)

`Store` lists the guarantees of its methods. The store knows no components: configs are plain
mappings. It never imports torch.
"""

from advsweep.store.evaluation_records import (
    AnswerSample,
    EvaluationRecord,
    NewEvaluation,
    ProblemCounts,
)
from advsweep.store.owners import Owner
from advsweep.store.records import (
    AnalysisRecord,
    CheckpointRecord,
    Failure,
    NewAnalysis,
    NewRun,
    RunRecord,
    Status,
    SweepRecord,
    parse_status,
)
from advsweep.store.store import Store, explain_by_damage, open_store

__all__ = [
    "AnalysisRecord",
    "AnswerSample",
    "CheckpointRecord",
    "EvaluationRecord",
    "Failure",
    "NewAnalysis",
    "NewEvaluation",
    "NewRun",
    "Owner",
    "ProblemCounts",
    "RunRecord",
    "Status",
    "Store",
    "SweepRecord",
    "explain_by_damage",
    "open_store",
    "parse_status",
]
