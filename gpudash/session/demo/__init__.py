"""The demo and the lessons: scenes as data, the show that plays them, and lines in a process of their own; no Qt."""
