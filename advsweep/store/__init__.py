"""The database of runs, metrics and evaluations: SQLite by default, PostgreSQL by URL.

    store = open_store()  # ./advsweep.db, created if it does not exist
    [run_id] = store.runs.add([NewRun(...)])
    if store.leases.claim(run_id, Owner.current()):
        store.metrics.record(run_id, [("reward/mean", 1, 0.31)])
        store.leases.finish(run_id, Status.DONE)

`Store` lists the guarantees of its methods. Configs are plain mappings: the store builds none of
the components that they name, and never imports torch.
"""

from advsweep.failures import Failure
from advsweep.store.analysis_records import AnalysisRecord, NewAnalysis
from advsweep.store.evaluation_records import (
    AnswerSample,
    EvaluationRecord,
    NewEvaluation,
    ProblemCounts,
)
from advsweep.store.owners import Owner
from advsweep.store.records import NewRun, RunProgress, RunRecord, Status, SweepRecord
from advsweep.store.store import Store, open_store

__all__ = [
    "AnalysisRecord",
    "AnswerSample",
    "EvaluationRecord",
    "Failure",
    "NewAnalysis",
    "NewEvaluation",
    "NewRun",
    "Owner",
    "ProblemCounts",
    "RunProgress",
    "RunRecord",
    "Status",
    "Store",
    "SweepRecord",
    "open_store",
]
