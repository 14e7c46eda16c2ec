"""The commands that read files: recordings, exports of them, and memory snapshots."""
