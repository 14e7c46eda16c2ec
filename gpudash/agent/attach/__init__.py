"""Entering a running program, and leaving it as it was."""
