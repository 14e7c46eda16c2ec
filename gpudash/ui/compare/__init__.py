"""Runs laid over one another in a tab: curves, figures as B minus A, and what was asked of each."""

from gpudash.ui.features.compare import compare_command, compare_with, open_comparison

__all__ = ["compare_command", "compare_with", "open_comparison"]
