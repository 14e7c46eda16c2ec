"""The simulated device as torch sees it: its memory, its module and its history."""
