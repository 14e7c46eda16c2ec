"""What the terminal shows, and how a command is broken off."""
