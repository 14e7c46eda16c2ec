"""Running tensors: the only package that imports torch."""
