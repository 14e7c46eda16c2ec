"""What an idle window shows before anything has run: a script, a model, or a running program to start with."""
