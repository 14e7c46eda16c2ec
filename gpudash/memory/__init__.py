"""Reasoning about memory: thresholds, forecast, guard. No torch, NVML or Qt."""
