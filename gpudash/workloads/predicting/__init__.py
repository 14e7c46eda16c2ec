"""Dry runs, and the predictions made from them."""
