"""Causes in a program that make its memory run out, each with its own remedy, tried on the trace."""
