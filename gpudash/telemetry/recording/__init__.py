"""Recordings: one SQLite file a session, written while it happens and read back."""
