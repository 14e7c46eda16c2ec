"""``gpudash estimate``: what a run, a program or a server would take, before it is started."""
