"""Records of what was read and what happened, and their history. No torch, NVML or Qt."""
