"""What in a program made its memory run out: each cause with its own remedy, tried on the trace."""
