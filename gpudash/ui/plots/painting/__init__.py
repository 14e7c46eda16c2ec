"""Painting what `gpudash.drawing` describes, for whoever shows it in the window."""
