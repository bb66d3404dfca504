"""Tables made from the store alone: estimators compared, with intervals over seeds.

    report = build_report(open_store(create=False), "demo")
    print(render(report, "markdown"))

The path of a metric point, from the backend to a table's cell:

    1. `sweep.worker.reporter`        the backend's reporter batches points
    2. `store.metrics.record`         writes them to the table `points`
    3. `report.data.selection`        selects the runs of the table and its columns
    4. `store.metrics.means`          reads one number per run from the points
    5. `report.data.measure`          collects these numbers by column
    6. `report.tables.rows`           makes one frame of all, and each row's `Cell` from it
    7. `report.tables.build`          puts `Row`s, differences and provenance into a `Report`
    8. `report.tables.render`         formats every `Cell` as an `Entry` of text
    9. `advsweep.writing`             writes the entries

`report.tables.types` holds all of these types; `Row` is the only row of numbers.
`report.api` is the Python API. Reports import pandas, and no part imports torch.
"""

import sys
from importlib import import_module
from types import ModuleType
from typing import Any

from advsweep.report.claims.assertions import (
    ClaimVerdict,
    Finding,
    evaluate_assertion,
    parse_assertion,
)
from advsweep.report.claims.lists import (
    claim_lists,
    evaluate_claims,
    parse_claim_list,
    read_claim_list,
    render_claims,
)
from advsweep.report.claims.sentences import describe_findings, lay_out_short, shorten_report
from advsweep.report.data.columns import parse_cutoff
from advsweep.report.data.metrics import MetricDirection
from advsweep.report.data.runs import Filter, parse_where, split_list
from advsweep.report.tables.build import build_report
from advsweep.report.tables.comparison import find_marks
from advsweep.report.tables.render import lay_out, render
from advsweep.report.tables.types import Report
from advsweep.writing import FORMATS, Mark

__all__ = [
    "FORMATS",
    "ClaimVerdict",
    "Filter",
    "Finding",
    "Mark",
    "MetricDirection",
    "Report",
    "build_report",
    "claim_lists",
    "describe_findings",
    "evaluate_assertion",
    "evaluate_claims",
    "find_marks",
    "lay_out",
    "lay_out_short",
    "parse_assertion",
    "parse_claim_list",
    "parse_cutoff",
    "parse_where",
    "read_claim_list",
    "render",
    "render_claims",
    "shorten_report",
    "split_list",
]


class _CallableModule(ModuleType):
    """This package as the function `advsweep.report(...)`, whose name it shares."""

    def __call__(self, *args: Any, **options: Any) -> Any:
        # Imports pandas, which no command needs.
        return import_module("advsweep.report.api").report(*args, **options)


sys.modules[__name__].__class__ = _CallableModule
