"""What a run came to, and where the time of its steps went."""
