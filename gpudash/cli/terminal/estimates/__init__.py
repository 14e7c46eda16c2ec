"""Printing predictions: memory as a curve of blocks, the fit, the time of a step."""
