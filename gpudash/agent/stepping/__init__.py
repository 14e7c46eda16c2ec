"""The program's steps: when its optimizer completes one, and where the time between two of them goes."""
