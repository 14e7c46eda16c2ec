"""Recordings: the folder of them, reading and replaying them, and files that are to be opened."""
