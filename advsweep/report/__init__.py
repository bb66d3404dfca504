"""Tables made from the store alone: estimators compared, with intervals over seeds.

    report = build_report(open_store(create=False), "demo")
    print(render(report, "markdown"))

Never imports torch.
"""

from advsweep.report.answers import ANSWER_FORMATS, render_answers
from advsweep.report.assertions import Assertion, Judgement, Verdict, judge, parse_assertion
from advsweep.report.claims import Claim, Claims, claim_lists, parse_claims, read_claims
from advsweep.report.columns import Better, Column
from advsweep.report.layout import lay_out
from advsweep.report.marks import marks
from advsweep.report.models import build_model_report
from advsweep.report.moments import Moment, parse_moment
from advsweep.report.provenance import Provenance
from advsweep.report.records import Cell, Difference, Report, Row
from advsweep.report.render import FORMATS, render
from advsweep.report.report import build_report
from advsweep.report.styles import Style, choose_style
from advsweep.report.table import Document, Mark, Table
from advsweep.report.verdicts import Answer, Answers, answer_claims
from advsweep.report.where import Condition, parse_where, split_list

__all__ = [
    "ANSWER_FORMATS",
    "FORMATS",
    "Answer",
    "Answers",
    "Assertion",
    "Better",
    "Cell",
    "Claim",
    "Claims",
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
    "Style",
    "Table",
    "Verdict",
    "answer_claims",
    "build_model_report",
    "build_report",
    "choose_style",
    "claim_lists",
    "judge",
    "lay_out",
    "marks",
    "parse_assertion",
    "parse_claims",
    "parse_moment",
    "parse_where",
    "read_claims",
    "render",
    "render_answers",
    "split_list",
]
