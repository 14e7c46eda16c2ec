"""Records of readings and events, and their history. No torch, NVML or Qt."""
