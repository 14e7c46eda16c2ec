"""``gpudash estimate``: what a run, a program or a server would need, before it is started."""
