"""Watching the user's own program."""
