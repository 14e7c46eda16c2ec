"""Compares a workload on two devices, or on one with its prediction for a card that is not present."""
