"""The live session: its run, its guards, its devices and what it says of itself."""
