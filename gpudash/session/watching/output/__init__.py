"""The output of a watched program: relayed, stored, and searched for metrics."""
