"""Speed budgets, each measured beside a yardstick of the same run."""
