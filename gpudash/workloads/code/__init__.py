"""A run as the plain PyTorch program it amounts to."""
