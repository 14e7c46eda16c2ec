"""Models built from their config, run by their libraries' own code in the user's Python, which has torch and those."""
