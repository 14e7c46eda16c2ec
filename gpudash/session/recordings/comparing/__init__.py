"""Recorded runs side by side: a comparison of them, and runs drawn over the live plots."""
