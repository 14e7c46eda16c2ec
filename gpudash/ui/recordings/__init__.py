"""Recordings in tabs: playing one back, and the library of all."""
