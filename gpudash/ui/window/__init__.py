"""The window itself: where documents stand, its palette, settings and undo."""
