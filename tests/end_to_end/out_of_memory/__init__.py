"""Kinds of out-of-memory as small programs: is the cause found, and does the first remedy work as it is written?"""
