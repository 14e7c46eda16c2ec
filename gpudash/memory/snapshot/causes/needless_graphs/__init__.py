"""Graphs that are kept although nothing is differentiated through them, or longer than necessary."""
