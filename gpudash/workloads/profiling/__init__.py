"""torch.profiler around steps of a run, and what it found."""
