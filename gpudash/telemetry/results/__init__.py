"""The results of a run, and where the time of its steps went."""
