"""The panel at the left: what is to be run, on what, and whether it fits."""
