"""Watching a program that runs already: from inside where there is a way in, else from outside."""
