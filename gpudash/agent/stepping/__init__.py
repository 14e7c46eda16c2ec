"""The program's steps: when its optimizer makes one, and where the time between two of them goes."""
