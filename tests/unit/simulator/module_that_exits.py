"""A program without a guard against being imported."""

raise SystemExit(3)
