"""The panel at the left: what to run, on which device, and whether it fits."""
