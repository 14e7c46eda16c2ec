"""Whole programs in a dry run, as they are."""
