"""Runs of recordings side by side: a comparison of them, and runs laid over the live plots."""
