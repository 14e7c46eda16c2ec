"""What a program needs that ran out of memory, found by running it again."""
