"""Tables made from the store alone: estimators compared, with intervals over seeds.

    report = build_report(open_store(create=False), "demo")
    print(render(report, "markdown"))

Never imports torch.
"""

from advsweep.report.assertions import Assertion, Judgement, Verdict, judge, parse_assertion
from advsweep.report.columns import Better, Column
from advsweep.report.layout import lay_out
from advsweep.report.marks import marks
from advsweep.report.moments import Moment, parse_moment
from advsweep.report.provenance import Provenance
from advsweep.report.records import Cell, Difference, Report, Row
from advsweep.report.render import FORMATS, render
from advsweep.report.report import build_report
from advsweep.report.table import Document, Mark, Table
from advsweep.report.where import Condition, parse_where, split_list

__all__ = [
    "FORMATS",
    "Assertion",
    "Better",
    "Cell",
    "Column",
    "Condition",
    "Difference",
    "Document",
    "Judgement",
    "Mark",
    "Moment",
    "Provenance",
    "Report",
    "Row",
    "Table",
    "Verdict",
    "build_report",
    "judge",
    "lay_out",
    "marks",
    "parse_assertion",
    "parse_moment",
    "parse_where",
    "render",
    "split_list",
]
