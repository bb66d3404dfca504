"""Which evaluation of a run is its last one."""

from __future__ import annotations

from advsweep.importing.write import ImportContext, gather, write_run
from advsweep.logs.base import ProblemCount
from advsweep.logs.names import LoggedStep
from advsweep.report.data.evaluation_choice import select_evaluations
from advsweep.store import open_store


def test_the_last_evaluation_of_an_imported_run_counts_even_if_the_log_goes_on(tmp_path):
    config = {"backend": {"name": "imported", "format": "x"}, "estimator": {"name": "grpo"}}
    results = [ProblemCount(step, "p", 4, step // 4) for step in (0, 4, 8)]
    with open_store(str(tmp_path / "advsweep.db")) as store:
        content = gather("x", "a", config, [LoggedStep(10, {"a": 1.0})], results)
        write_run(store, content, ImportContext(environment={}))
        runs = store.runs.select()
        evaluated = select_evaluations(store, runs)
        assert evaluated.main is not None
        task = evaluated.tasks[evaluated.main]
        assert (runs[0].steps, task.final[1].step, task.base[1].step) == (10, 8, 0)
        assert [record.step for record in task.along[1]] == [0, 8]
        along = select_evaluations(store, runs, along=True).tasks[evaluated.main].along
        assert [record.step for record in along[1]] == [0, 4, 8]
