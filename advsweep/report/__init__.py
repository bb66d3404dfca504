"""Tables made from the store alone: estimators compared, with intervals over seeds.

    report = build_report(open_store(create=False), "demo")
    print(render(report, "markdown"))

Never imports torch.
"""

import sys
from importlib import import_module
from types import ModuleType
from typing import Any

from advsweep.report.claims.evaluate import ClaimResult, ClaimResults, evaluate_claims
from advsweep.report.claims.expressions import (
    Assertion,
    AssertionResult,
    ClaimVerdict,
    evaluate_assertion,
    parse_assertion,
)
from advsweep.report.claims.lists import (
    Claim,
    ClaimList,
    claim_lists,
    parse_claim_list,
    read_claim_list,
)
from advsweep.report.claims.render import CLAIM_FORMATS, render_claims
from advsweep.report.data.columns import Column, MetricDirection
from advsweep.report.data.filters import Filter, parse_where, split_list
from advsweep.report.data.measure import Cutoff, parse_cutoff
from advsweep.report.papers.layouts import PaperLayout, choose_layout
from advsweep.report.tables.build import build_report
from advsweep.report.tables.comparison import find_marks
from advsweep.report.tables.export import FORMATS, render
from advsweep.report.tables.layout import lay_out
from advsweep.report.tables.models import build_model_report
from advsweep.report.tables.types import (
    Cell,
    Difference,
    Document,
    Mark,
    Provenance,
    Report,
    Row,
    Table,
)

__all__ = [
    "CLAIM_FORMATS",
    "FORMATS",
    "Assertion",
    "AssertionResult",
    "Cell",
    "Claim",
    "ClaimList",
    "ClaimResult",
    "ClaimResults",
    "ClaimVerdict",
    "Column",
    "Cutoff",
    "Difference",
    "Document",
    "Filter",
    "Mark",
    "MetricDirection",
    "PaperLayout",
    "Provenance",
    "Report",
    "Row",
    "Table",
    "build_model_report",
    "build_report",
    "choose_layout",
    "claim_lists",
    "evaluate_assertion",
    "evaluate_claims",
    "find_marks",
    "lay_out",
    "parse_assertion",
    "parse_claim_list",
    "parse_cutoff",
    "parse_where",
    "read_claim_list",
    "render",
    "render_claims",
    "split_list",
]


class _CallableModule(ModuleType):
    """This package as the function `advsweep.report(...)`, whose name it shares."""

    def __call__(self, *args: Any, **options: Any) -> Any:
        # Imports pandas, which no command needs.
        return import_module("advsweep.report.api").report(*args, **options)


sys.modules[__name__].__class__ = _CallableModule
