"""A predicted run in the memory plot: its ribbons, its peak as a handle, remedies, and deviations of the actual
run."""
