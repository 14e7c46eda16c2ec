"""A program's source, with the memory that each line holds in the margin."""
