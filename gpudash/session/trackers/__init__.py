"""What other tools measured: traces of PyTorch's profiler, and what trackers of experiments keep."""
