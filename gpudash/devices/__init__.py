"""The existing devices and their names, and GPUs known by name."""
