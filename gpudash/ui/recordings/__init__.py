"""Recordings in tabs: one of them played back, and the library of all."""
