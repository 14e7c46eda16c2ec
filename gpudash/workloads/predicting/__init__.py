"""Dry runs, and what they come to."""
