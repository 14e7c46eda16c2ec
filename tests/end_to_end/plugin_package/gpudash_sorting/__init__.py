"""Sorting, as a workload of gpudash."""
