"""Models by their config, run by their libraries' own code: in the user's Python, with torch and those libraries."""
