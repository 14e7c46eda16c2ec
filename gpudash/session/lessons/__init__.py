"""The lessons: scenes with a guess before each, and the sheet that records the guesses; no Qt."""
