"""Graphs that are kept though nothing is differentiated by them, or longer than that takes."""
