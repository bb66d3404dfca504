"""Tables made from the store alone: estimators compared, with intervals over seeds.

    report = build_report(open_store(create=False), "demo")
    print(render(report, "markdown"))

Never imports torch.
"""

from advsweep.report.columns import Better, Column
from advsweep.report.marks import Mark, marks
from advsweep.report.provenance import Provenance
from advsweep.report.render import FORMATS, render
from advsweep.report.report import Cell, Report, Row, build_report

__all__ = [
    "FORMATS",
    "Better",
    "Cell",
    "Column",
    "Mark",
    "Provenance",
    "Report",
    "Row",
    "build_report",
    "marks",
    "render",
]
