"""The fit of `gpudash.speed` to published tables, and its blind tests: `python -m tests.speed`."""
