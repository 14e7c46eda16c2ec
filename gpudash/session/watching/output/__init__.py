"""What a watched program prints: relayed, kept, and read for metrics."""
