"""The messages of a watched program's processes: received, converted to records, and joined by rank."""
