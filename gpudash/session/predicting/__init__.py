"""Predictions for the devices of a session, by a child process that stays warm."""
