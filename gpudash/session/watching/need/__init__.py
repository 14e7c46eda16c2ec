"""The memory that a program needs that ran out of it, found by running it again."""
