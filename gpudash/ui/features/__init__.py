"""What the window can do: its commands, by subject."""
