"""Queries a Prometheus server for GPUs: its HTTP API, and the names of three exporters for the same readings."""
