"""The simulated device for torch: its memory, its module and its memory history."""
