"""One workload on two devices in alternation: measured, and judged in words."""
