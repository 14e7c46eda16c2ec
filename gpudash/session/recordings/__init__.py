"""Recordings: their folder, reading and replaying them, and files on their way into the window."""
