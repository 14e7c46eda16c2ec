"""Runs laid over one another in a tab: curves, figures as B minus A, and what was asked of each."""
