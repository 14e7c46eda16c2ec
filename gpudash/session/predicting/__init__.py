"""Predictions for a session's devices, made by a child process that stays warm."""
