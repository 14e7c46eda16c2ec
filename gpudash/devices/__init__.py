"""Which devices exist and what they are called, and GPUs that are known by name."""
