"""A program's source, with what each line holds beside it."""
