"""Reads the bytes of a snapshot file into columns, under limits."""
