"""Running tensors: the only package that imports torch, and only when asked to."""

from gpudash.workloads.running.installed import torch_report, torch_words

__all__ = ["torch_report", "torch_words"]
