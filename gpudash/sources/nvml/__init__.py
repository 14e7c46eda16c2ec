"""NVML: opening it, its calls and errors, and the readings of every GPU."""
