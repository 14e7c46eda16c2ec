"""Recordings: one SQLite file for each session, written during the session and read back."""
