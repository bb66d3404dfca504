"""Tables made from the store alone: estimators compared, with intervals over seeds.

    report = build_report(open_store(create=False), "demo")
    print(render(report, "markdown"))

Never imports torch.
"""

import sys
from importlib import import_module
from types import ModuleType
from typing import Any

from advsweep.report.claims.evaluate import Answer, Answers, answer_claims
from advsweep.report.claims.expressions import Assertion, Judgement, Verdict, judge, parse_assertion
from advsweep.report.claims.lists import Claim, Claims, claim_lists, parse_claims, read_claims
from advsweep.report.claims.render import ANSWER_FORMATS, render_answers
from advsweep.report.data.columns import Column, MetricDirection
from advsweep.report.data.filters import Filter, parse_where, split_list
from advsweep.report.data.measure import Cutoff, parse_cutoff
from advsweep.report.data.provenance import Provenance
from advsweep.report.papers.layouts import PaperLayout, choose_layout
from advsweep.report.tables.build import build_report
from advsweep.report.tables.comparison import find_marks
from advsweep.report.tables.export import FORMATS, render
from advsweep.report.tables.layout import lay_out
from advsweep.report.tables.models import build_model_report
from advsweep.report.tables.types import Cell, Difference, Document, Mark, Report, Row, Table

__all__ = [
    "ANSWER_FORMATS",
    "FORMATS",
    "Answer",
    "Answers",
    "Assertion",
    "Cell",
    "Claim",
    "Claims",
    "Column",
    "Cutoff",
    "Difference",
    "Document",
    "Filter",
    "Judgement",
    "Mark",
    "MetricDirection",
    "PaperLayout",
    "Provenance",
    "Report",
    "Row",
    "Table",
    "Verdict",
    "answer_claims",
    "build_model_report",
    "build_report",
    "choose_layout",
    "claim_lists",
    "find_marks",
    "judge",
    "lay_out",
    "parse_assertion",
    "parse_claims",
    "parse_cutoff",
    "parse_where",
    "read_claims",
    "render",
    "render_answers",
    "split_list",
]


class _CallableModule(ModuleType):
    """This package as the function `advsweep.report(...)`, whose name it shares."""

    def __call__(self, *args: Any, **options: Any) -> Any:
        # Imports pandas, which no command needs.
        return import_module("advsweep.report.api").report(*args, **options)


sys.modules[__name__].__class__ = _CallableModule
