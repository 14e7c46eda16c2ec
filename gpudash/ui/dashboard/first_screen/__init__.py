"""What an idle window shows that has run nothing: a script, a model, or a running program to begin with."""
