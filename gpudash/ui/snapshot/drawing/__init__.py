"""What a snapshot looks like: its timeline, call tree and memory map."""
