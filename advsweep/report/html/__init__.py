"""The report as one interactive page, which needs nothing but a browser."""

from advsweep.report.html.live import render_live_page
from advsweep.report.html.page import render_page
from advsweep.report.html.sweeps import render_sweeps

__all__ = ["render_live_page", "render_page", "render_sweeps"]
