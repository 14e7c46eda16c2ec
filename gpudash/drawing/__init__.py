"""Drawings and pages that need no screen: what a plot shows, painted as SVG, and pages of HTML from templates."""
