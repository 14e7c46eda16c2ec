"""Painting in the window what `gpudash.drawing` describes."""
