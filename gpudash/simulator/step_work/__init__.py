"""What a step does, written down beside what it allocates."""
