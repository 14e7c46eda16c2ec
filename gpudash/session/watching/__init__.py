"""Watches the user's own program."""
