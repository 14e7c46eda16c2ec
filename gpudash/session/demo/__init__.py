"""The demo: scenes as data, the show that plays them, and lines in a separate process; no Qt."""
