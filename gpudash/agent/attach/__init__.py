"""Coming into a program that runs already, and leaving it as it was."""
