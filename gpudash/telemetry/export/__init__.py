"""Writes a recording in formats of other programs, and provides the parts of report pages."""
