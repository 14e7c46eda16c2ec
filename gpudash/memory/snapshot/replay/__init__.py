"""Runs a recorded trace again on another card or with other settings."""
