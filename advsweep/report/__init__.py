"""Tables made from the store alone: estimators compared, with intervals over seeds.

    from advsweep.report.tables.build import build_report
    from advsweep.report.tables.render import render
    from advsweep.report.tables.request import ReportRequest
    from advsweep.store.store import open_store

    report = build_report(open_store(create=False), ReportRequest("demo"))
    print(render(report, "markdown"))

The path of a metric point, from the backend to a table's cell:

    1. `sweep.worker.reporter`        the backend's reporter batches points
    2. `store.metrics.record`         writes them to the table `points`
    3. `report.tables.selection`      selects the runs of the table and its columns
    4. `report.data.sources`          reads one number per run from the points
    5. `report.tables.measurements`   collects these numbers by column
    6. `report.tables.rows`           makes one frame of all, and each row's `Cell` from it
    7. `report.tables.comparison`     compares the rows with a baseline
    8. `report.tables.build`          calls these steps, and puts their values into a `Report`
    9. `report.tables.render`         formats every `Cell` as an `Entry` of text
    10. `advsweep.writing`            writes the entries

`report.tables.types` holds all of these types; `Row` is the only row of numbers.
`report.api` is the Python API. Reports import pandas, and no part imports torch.
"""

from advsweep.callable_packages import make_callable

# Imports pandas, which no command needs.
make_callable(__name__, "advsweep.report.api", "report")
