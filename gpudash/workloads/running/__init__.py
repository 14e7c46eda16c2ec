"""Who runs a workload: the worker's thread, one run, what it is given, how it ends."""
