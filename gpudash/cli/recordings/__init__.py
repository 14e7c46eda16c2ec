"""The commands that read what is on the disk: recordings, exports of them, and memory snapshots."""
