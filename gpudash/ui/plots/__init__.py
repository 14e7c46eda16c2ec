"""The plots: one time axis, one cursor, one selection over a stack of live curves."""
