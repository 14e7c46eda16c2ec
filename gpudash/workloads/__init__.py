"""Runs work on tensors: the only package that imports torch, and only when needed."""
