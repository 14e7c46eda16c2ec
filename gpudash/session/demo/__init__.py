"""The demo: scenes as data, the show that plays them, and lines in a process of their own; no Qt."""
