"""Compares runs in a tab: overlaid curves, differences B minus A, and the settings of each run."""
