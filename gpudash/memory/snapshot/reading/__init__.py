"""From the bytes of a snapshot file to a snapshot in columns, under limits."""
