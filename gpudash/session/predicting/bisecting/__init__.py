"""Which commit raised a program's peak: ``gpudash bisect``.

Open `search.py` first. The user's tree is read by git alone: commits are checked out in a private folder.
"""
