"""Runs a workload: the worker's thread, a run, its context, and how it ends."""
