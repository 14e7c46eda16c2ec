"""What a run will take, and whether it fits."""
