"""A recording as one page of HTML that needs nothing but itself."""

from gpudash.session.report.page import report, write_report

__all__ = ["report", "write_report"]
