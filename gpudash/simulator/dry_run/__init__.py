"""Runs code without numbers, and records its requests to the allocator."""
