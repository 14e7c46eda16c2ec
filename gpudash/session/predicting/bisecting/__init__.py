"""Which commit raised a program's peak: ``gpudash bisect``.

Open `search.py` first. Only git reads the user's working tree: commits are checked out in a private folder.
"""
