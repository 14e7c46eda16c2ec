"""Running tensors: the only package that imports torch, and only when asked to."""
