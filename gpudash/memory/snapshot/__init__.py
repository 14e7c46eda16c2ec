"""Torch's memory snapshots: read safely, kept in columns, and reasoned about."""
