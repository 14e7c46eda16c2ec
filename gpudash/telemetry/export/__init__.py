"""Writes a recording in formats other programs read, and what pages of reports are made of."""
