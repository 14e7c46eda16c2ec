"""The plots: a stack of live curves that share one time axis, one cursor and one selection."""
