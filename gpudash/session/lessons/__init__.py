"""The lessons: scenes with a guess before each, and the sheet that keeps the guesses; no Qt."""
