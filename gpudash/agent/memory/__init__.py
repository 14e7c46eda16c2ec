"""The program's memory on torch's devices; loaded once it has imported torch."""
