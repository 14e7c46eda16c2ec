"""Budgets of GPU memory in tests: the plug-in of pytest, and what runs a test on a card of a chosen size."""
