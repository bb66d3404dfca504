"""The report as one interactive page, which needs nothing but a browser."""

from advsweep.report.html.page import render_page

__all__ = ["render_page"]
