"""The building blocks of every part of the window: theme, labels, fields, tables."""
