"""Machines over ssh: each recorded and watched as this one is, all of them a fleet."""
