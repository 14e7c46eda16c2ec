"""Attaches to a running program: from inside if it can be entered, else from outside."""
