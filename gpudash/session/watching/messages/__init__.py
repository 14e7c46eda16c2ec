"""What the processes of a watched program send: heard, turned into records, and joined by rank."""
