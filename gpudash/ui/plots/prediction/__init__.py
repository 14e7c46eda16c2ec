"""A predicted run in the memory plot: its ribbons, its peak as a handle, remedies, and where a run deviates from it."""
