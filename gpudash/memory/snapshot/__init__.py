"""Torch's memory snapshots: read safely, stored in columns, and analysed."""
