"""Recognises losses by the names that people give scalars in TensorBoard."""

from __future__ import annotations

import re

_VALIDATION = re.compile(r"(?:^|[^a-z])(?:val|valid|validation|eval|test)(?:[^a-z]|$)")
_ACCURACY = re.compile(r"(?:^|[^a-z])(?:acc|accuracy)(?:[^a-z]|$)")


def is_loss(tag: str) -> bool:
    """Whether a scalar is a loss, of training or validation."""
    return "loss" in tag.casefold()


def is_validation(tag: str) -> bool:
    """Whether a scalar belongs to a validation."""
    return _VALIDATION.search(tag.casefold()) is not None


def is_accuracy(tag: str) -> bool:
    """Whether a scalar is an accuracy."""
    return _ACCURACY.search(tag.casefold()) is not None
