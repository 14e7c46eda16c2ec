"""What was alive at any moment of a trace, what it was for, and where it lay."""
