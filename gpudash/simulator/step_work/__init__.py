"""What a step does, logged in addition to what it allocates."""
