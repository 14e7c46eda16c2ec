"""Runs a few lines of PyTorch one by one on a simulated card, and records the memory blocks of each."""
