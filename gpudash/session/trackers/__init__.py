"""Measurements of other tools: traces of PyTorch's profiler, and logs of experiment trackers."""
