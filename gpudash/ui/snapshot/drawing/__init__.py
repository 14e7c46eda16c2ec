"""Drawings of a snapshot: its timeline, call tree and memory map."""
