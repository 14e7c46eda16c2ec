"""A run in a process of its own."""
