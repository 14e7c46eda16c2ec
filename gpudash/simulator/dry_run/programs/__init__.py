"""Dry runs of whole, unmodified programs."""
